// Contexts, streams and events.
#include "tests/gpu_sim/driver/api.h"

namespace rekindle::gpu_sim {
namespace {

thread_local const void* current_context = nullptr;

constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING

void WaitIdle(const StreamQueue& queue) { queue.WaitFor(queue.Pushed()); }

void WaitForOrderedStreams(Process& process, const Context* context) {
  for (const auto& stream : process.streams().All()) {
    if (stream->context == context && stream->blocking) WaitIdle(stream->queue);
  }
}

}  // namespace

std::shared_ptr<Context> CurrentContext(Process& process) { return process.contexts().Find(current_context); }
void SetCurrentContext(const Context* context) { current_context = context; }

std::shared_ptr<Stream> StreamOf(Process& process, const std::shared_ptr<Context>& context, void* handle) {
  // CU_STREAM_LEGACY and CU_STREAM_PER_THREAD are the null stream here.
  if (reinterpret_cast<uintptr_t>(handle) <= 2) return context->null_stream;
  return process.streams().Find(handle);
}

gpu::cuda::Result Queue(Process& process, void* handle, std::function<gpu::cuda::Result()> work) {
  const std::shared_ptr<Context> context = CurrentContext(process);
  if (context == nullptr) return gpu::cuda::kInvalidContext;
  if (context->error != 0) return context->error;
  const std::shared_ptr<Stream> stream = StreamOf(process, context, handle);
  if (stream == nullptr) return gpu::cuda::kInvalidHandle;
  if (stream == context->null_stream) {
    WaitForOrderedStreams(process, context.get());
  } else if (stream->blocking) {
    WaitIdle(context->null_stream->queue);
  }
  // A plain pointer: the context's end waits for its queues, and must not come in one of their threads.
  stream->queue.Push([owner = context.get(), work = std::move(work)] {
    if (owner->error != 0) return;
    const gpu::cuda::Result result = work();
    if (result != gpu::cuda::kSuccess) owner->error = result;
  });
  return gpu::cuda::kSuccess;
}

gpu::cuda::Result WaitForNullStream(Process& process) {
  const std::shared_ptr<Context> context = CurrentContext(process);
  if (context == nullptr) return gpu::cuda::kInvalidContext;
  WaitForOrderedStreams(process, context.get());
  WaitIdle(context->null_stream->queue);
  return context->error;
}

}  // namespace rekindle::gpu_sim

using namespace rekindle::gpu_sim;
namespace cuda = rekindle::gpu::cuda;

GPU_SIM_API cuDevicePrimaryCtxRetain(Context** context, int device) {
  if (context == nullptr) return cuda::kInvalidValue;
  return Process::Get().InCall(
      [&](Process& process) { return process.CreateContext(device, true, context); });
}

GPU_SIM_API cuDevicePrimaryCtxRelease_v2(int device) {
  return Process::Get().InCall([&](Process& process) {
    for (const auto& context : process.contexts().All()) {
      if (context->primary && context->device == device) return process.DestroyContext(context.get());
    }
    return cuda::kInvalidContext;
  });
}

GPU_SIM_API cuCtxCreate_v2(Context** context, unsigned, int device) {
  if (context == nullptr) return cuda::kInvalidValue;
  return Process::Get().InCall([&](Process& process) {
    const cuda::Result result = process.CreateContext(device, false, context);
    if (result == cuda::kSuccess) SetCurrentContext(*context);
    return result;
  });
}

GPU_SIM_API cuCtxDestroy_v2(Context* context) {
  return Process::Get().InCall([&](Process& process) {
    const std::shared_ptr<Context> found = process.contexts().Find(context);
    return found == nullptr || found->primary ? cuda::kInvalidContext : process.DestroyContext(context);
  });
}

GPU_SIM_API cuCtxSetCurrent(Context* context) {
  return Process::Get().InCall([&](Process& process) {
    if (context != nullptr && process.contexts().Find(context) == nullptr) return cuda::kInvalidContext;
    SetCurrentContext(context);
    return cuda::kSuccess;
  });
}

GPU_SIM_API cuCtxGetCurrent(Context** context) {
  if (context == nullptr) return cuda::kInvalidValue;
  return Process::Get().InCall([&](Process& process) {
    *context = CurrentContext(process).get();
    return cuda::kSuccess;
  });
}

GPU_SIM_API cuCtxGetDevice(int* device) {
  if (device == nullptr) return cuda::kInvalidValue;
  return Process::Get().InCall([&](Process& process) {
    const std::shared_ptr<Context> context = CurrentContext(process);
    if (context == nullptr) return cuda::kInvalidContext;
    *device = context->device;
    return cuda::kSuccess;
  });
}

GPU_SIM_API cuCtxSynchronize() {
  return Process::Get().InSynchronize([&](Process& process) -> cuda::Result {
    const std::shared_ptr<Context> context = CurrentContext(process);
    if (context == nullptr) return cuda::kInvalidContext;
    for (const auto& stream : process.streams().All()) {
      if (stream->context == context.get()) WaitIdle(stream->queue);
    }
    WaitIdle(context->null_stream->queue);
    return context->error;
  });
}

GPU_SIM_API cuStreamCreate(Stream** stream, unsigned flags) {
  if (stream == nullptr || flags > kNonBlocking) return cuda::kInvalidValue;
  return Process::Get().InCall([&](Process& process) {
    const std::shared_ptr<Context> context = CurrentContext(process);
    if (context == nullptr) return cuda::kInvalidContext;
    auto created = std::make_shared<Stream>();
    created->context = context.get();
    created->blocking = flags != kNonBlocking;
    *stream = process.streams().Add(created);
    return cuda::kSuccess;
  });
}

GPU_SIM_API cuStreamDestroy_v2(Stream* stream) {
  return Process::Get().InCall([&](Process& process) {
    return process.streams().Remove(stream) == nullptr ? cuda::kInvalidHandle : cuda::kSuccess;
  });
}

GPU_SIM_API cuStreamSynchronize(Stream* stream) {
  return Process::Get().InSynchronize([&](Process& process) -> cuda::Result {
    const std::shared_ptr<Context> context = CurrentContext(process);
    if (context == nullptr) return cuda::kInvalidContext;
    const std::shared_ptr<Stream> found = StreamOf(process, context, stream);
    if (found == nullptr) return cuda::kInvalidHandle;
    WaitIdle(found->queue);
    return context->error;
  });
}

GPU_SIM_API cuStreamQuery(Stream* stream) {
  return Process::Get().InCall([&](Process& process) -> cuda::Result {
    const std::shared_ptr<Context> context = CurrentContext(process);
    if (context == nullptr) return cuda::kInvalidContext;
    const std::shared_ptr<Stream> found = StreamOf(process, context, stream);
    if (found == nullptr) return cuda::kInvalidHandle;
    if (!found->queue.Done(found->queue.Pushed())) return cuda::kNotReady;
    return context->error;
  });
}

GPU_SIM_API cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
  return Process::Get().InCall([&](Process& process) {
    const std::shared_ptr<Context> context = CurrentContext(process);
    const std::shared_ptr<Event> found = process.events().Find(event);
    if (context == nullptr) return cuda::kInvalidContext;
    if (found == nullptr) return cuda::kInvalidHandle;
    if (found->stream == nullptr || found->stream == StreamOf(process, context, stream))
      return cuda::kSuccess;
    return Queue(process, stream, [from = found->stream, number = found->number] {
      from->queue.WaitFor(number);
      return cuda::kSuccess;
    });
  });
}

GPU_SIM_API cuEventCreate(Event** event, unsigned) {
  if (event == nullptr) return cuda::kInvalidValue;
  return Process::Get().InCall([&](Process& process) {
    if (CurrentContext(process) == nullptr) return cuda::kInvalidContext;
    *event = process.events().Add(std::make_shared<Event>());
    return cuda::kSuccess;
  });
}

GPU_SIM_API cuEventRecord(Event* event, Stream* stream) {
  return Process::Get().InCall([&](Process& process) {
    const std::shared_ptr<Context> context = CurrentContext(process);
    if (context == nullptr) return cuda::kInvalidContext;
    const std::shared_ptr<Event> found = process.events().Find(event);
    const std::shared_ptr<Stream> where = StreamOf(process, context, stream);
    if (found == nullptr || where == nullptr) return cuda::kInvalidHandle;
    const cuda::Result result = Queue(process, stream, [] { return cuda::kSuccess; });
    found->stream = where;
    found->number = where->queue.Pushed();
    return result;
  });
}

GPU_SIM_API cuEventQuery(Event* event) {
  return Process::Get().InCall([&](Process& process) {
    const std::shared_ptr<Event> found = process.events().Find(event);
    if (found == nullptr) return cuda::kInvalidHandle;
    return found->stream == nullptr || found->stream->queue.Done(found->number) ? cuda::kSuccess
                                                                                : cuda::kNotReady;
  });
}

GPU_SIM_API cuEventSynchronize(Event* event) {
  return Process::Get().InSynchronize([&](Process& process) {
    const std::shared_ptr<Event> found = process.events().Find(event);
    if (found == nullptr) return cuda::kInvalidHandle;
    if (found->stream != nullptr) found->stream->queue.WaitFor(found->number);
    return cuda::kSuccess;
  });
}

GPU_SIM_API cuEventDestroy_v2(Event* event) {
  return Process::Get().InCall([&](Process& process) {
    return process.events().Remove(event) == nullptr ? cuda::kInvalidHandle : cuda::kSuccess;
  });
}
