// Images that leave the store or come in: as CRIU's folders, and as streams for other stores.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "ckpt/capture.h"
#include "ckpt/receive_image.h"
#include "daemon/call_monitor.h"
#include "daemon/image_lookup.h"
#include "daemon/monitor_observer.h"
#include "daemon/proto_conversion.h"
#include "daemon/request_check.h"
#include "daemon/rpc_support.h"
#include "daemon/rpcs.h"
#include "daemon/stalled_stream.h"
#include "daemon/user_names.h"
#include "daemon/version.h"
#include "restore/restore.h"
#include "restore/send_image.h"

namespace rekindle::daemon {
namespace {

// gRPC's own limit for a message is 4 MiB.
constexpr size_t kMessageBytes = 1u << 20;
constexpr double kProgressSeconds = 0.1;

absl::Status NobodyListens() { return absl::CancelledError("the image was not sent to its end"); }

// Makes messages of a fit size of whatever pieces come.
class Messages {
 public:
  Messages(const std::atomic<bool>& cancelled, const EventSink<v1::SendImageEvent>& send)
      : cancelled_(cancelled), send_(send) {}

  absl::Status Add(absl::string_view bytes) {
    while (!bytes.empty()) {
      std::string* data = event_.mutable_data();
      const absl::string_view piece = bytes.substr(0, kMessageBytes - data->size());
      data->append(piece.data(), piece.size());
      bytes.remove_prefix(piece.size());
      if (data->size() == kMessageBytes) RK_RETURN_IF_ERROR(Flush());
    }
    return absl::OkStatus();
  }

  absl::Status Flush() {
    if (event_.data().empty()) return absl::OkStatus();
    if (cancelled_ || !send_(event_)) return NobodyListens();
    event_.mutable_data()->clear();
    return absl::OkStatus();
  }

 private:
  const std::atomic<bool>& cancelled_;
  const EventSink<v1::SendImageEvent>& send_;
  v1::SendImageEvent event_;
};

using ExportObserver = MonitorObserver<restore::RestoreObserver, restore::RestoreProgress>;
using TakeInObserver = MonitorObserver<ckpt::CaptureObserver, ckpt::CaptureProgress>;

EventSink<v1::Progress> AsTransferProgress(const EventSink<v1::TransferEvent>& send) {
  return [&send](const v1::Progress& progress) {
    v1::TransferEvent event;
    *event.mutable_progress() = progress;
    return send(event);
  };
}

}  // namespace

// It gives what restore gives, the memory of a job that was the owner's own.
absl::Status SendImage(Node& node, const Call& call, const v1::SendImageRequest& request,
                       const EventSink<v1::SendImageEvent>& send_event) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kRead));
  RK_ASSIGN_OR_RETURN(store::ImageInfo info,
                      FindImageFor(node, *store, call.caller, request.image(), "send"));
  StalledStream reader(node.options().stream_patience, call.abandon);
  const EventSink<v1::SendImageEvent> send = [&](const v1::SendImageEvent& event) {
    const StalledStream::Waiting waiting(reader);
    return send_event(event);
  };
  const CallMonitor monitor(call, [](const v1::Progress&) { return true; });
  restore::SendOptions options;
  options.image = info;
  options.cancel = &monitor.cancelled();
  options.made_by = kVersion;
  if (!request.since().empty()) {
    RK_ASSIGN_OR_RETURN(options.base,
                        FindImageFor(node, *store, call.caller, request.since(), "compare with"));
  }
  Stopwatch watch, since_progress;
  options.progress = [&](uint64_t done, uint64_t total) {
    if (done < total && since_progress.seconds() < kProgressSeconds) return true;
    since_progress.Restart();
    v1::SendImageEvent event;
    v1::Progress* progress = event.mutable_progress();
    progress->set_phase("send");
    progress->set_bytes_done(done);
    progress->set_bytes_total(total);
    progress->set_elapsed_seconds(watch.seconds());
    return send(event);
  };
  Messages messages(monitor.cancelled(), send);
  if (request.has_parts()) {
    options.part_bytes = request.parts().bytes();
    options.parts_there.assign(request.parts().there().begin(), request.parts().there().end());
    options.begin_part = [&](const restore::SendPart& part) -> absl::Status {
      RK_RETURN_IF_ERROR(messages.Flush());
      v1::SendImageEvent event;
      event.mutable_part()->set_origin(part.origin);
      event.mutable_part()->set_base(part.base);
      event.mutable_part()->set_last(part.last);
      return send(event) ? absl::OkStatus() : NobodyListens();
    };
  }
  const auto send_all = [&]() -> absl::Status {
    RK_ASSIGN_OR_RETURN(
        const restore::SentImage sent,
        restore::SendImage(*store, options, [&](absl::string_view bytes) { return messages.Add(bytes); }));
    RK_RETURN_IF_ERROR(messages.Flush());
    v1::SendImageEvent event;
    ToProto(info, event.mutable_result()->mutable_image());
    event.mutable_result()->set_bytes(sent.bytes);
    return send(event) ? absl::OkStatus() : NobodyListens();
  };
  const absl::Status sent = send_all();
  if (sent.ok() || !reader.given_up()) return sent;
  const absl::Status given_up = absl::DeadlineExceededError(absl::StrCat(
      "sending image ", info.reference, " to uid ", call.caller.uid, " was given up: for ",
      absl::FormatDuration(node.options().stream_patience),
      " nothing of it was taken, and what an image needs of the store stays as long as it is being sent. "
      "Send it again to somebody who reads it"));
  // It may not get through to who reads nothing.
  Log(LogLevel::kWarning, given_up.message());
  return given_up;
}

absl::Status ReceiveImage(Node& node, const Call& call,
                          const std::function<bool(v1::ReceiveImageRequest*)>& read,
                          const EventSink<v1::ReceiveImageEvent>& send) {
  RK_RETURN_IF_ERROR(node.policy().MayAdminister(call.caller, "take in images"));
  v1::ReceiveImageRequest message;
  if (!read(&message) || !message.has_begin()) {
    return absl::InvalidArgumentError("what is to be done with the image comes first");
  }
  RK_RETURN_IF_ERROR(CheckRequest(message));
  ckpt::ReceiveOptions options;
  options.reference = message.begin().reference();
  options.replace = message.begin().replace();
  options.owner = call.caller.uid;
  if (!message.begin().owner().empty()) {
    RK_ASSIGN_OR_RETURN(options.owner, UserOfText(message.begin().owner()));
  }
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kCreate));
  options.spill_directory = store->path();
  CallMonitor monitor(call, [&send](const v1::Progress& progress) {
    v1::ReceiveImageEvent event;
    *event.mutable_progress() = progress;
    return send(event);
  });
  TakeInObserver observer(monitor);
  options.observer = &observer;
  options.cancel = &monitor.cancelled();
  // Longer than a command waits for what it is to send on, which can say what has stalled.
  const absl::Duration patience = node.options().stream_patience * 1.1;
  StalledStream sender(patience, call.abandon);
  bool begun = false;
  // Before the first of it comes nothing is held; it may have to be made first.
  const auto read_more = [&] {
    std::optional<StalledStream::Waiting> waiting;
    if (begun) waiting.emplace(sender);
    return begun = read(&message);
  };
  absl::string_view left;
  auto source = [&](absl::Span<std::byte> out) -> absl::StatusOr<size_t> {
    while (left.empty()) {
      if (!read_more()) return 0;
      left = message.data();
    }
    const size_t n = std::min(left.size(), out.size());
    std::memcpy(out.data(), left.data(), n);
    left.remove_prefix(n);
    return n;
  };
  absl::StatusOr<ckpt::ReceivedImage> received = ckpt::ReceiveImage(*store, options, source);
  monitor.Stop();
  if (!received.ok() && sender.given_up()) {
    const absl::Status given_up =
        absl::DeadlineExceededError(absl::StrCat("taking in an image from uid ", call.caller.uid,
                                                 " was given up: for ", absl::FormatDuration(patience),
                                                 " nothing of it came, and what it shares with others stays "
                                                 "in the store as long as it comes. Nothing of "
                                                 "it is left; send it once more"));
    Log(LogLevel::kWarning, given_up.message());  // it may not get through
    return given_up;
  }
  if (!received.ok() && monitor.cancelled()) {
    return absl::CancelledError("taking the image in was cancelled; nothing of it is left");
  }
  RK_RETURN_IF_ERROR(received.status());
  v1::ReceiveImageEvent event;
  ToProto(received->image, event.mutable_result()->mutable_image());
  event.mutable_result()->set_was_there(received->was_there);
  send(event);
  return absl::OkStatus();
}

// Both read and write folders that the client names with the service's rights, so they are for
// administrators.
absl::Status ExportImage(Node& node, const Call& call, const v1::ExportImageRequest& request,
                         const EventSink<v1::TransferEvent>& send) {
  if (absl::Status may = node.policy().MayAdminister(call.caller, "export images for CRIU"); !may.ok()) {
    return absl::PermissionDeniedError(
        absl::StrCat(may.message(), ". 'rekindle export --file' is for every owner of an image"));
  }
  RK_RETURN_IF_ERROR(CheckAbsolute(request.criu_directory(), "the folder"));
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kRead));
  RK_ASSIGN_OR_RETURN(store::ImageInfo info,
                      FindImageFor(node, *store, call.caller, request.image(), "export"));
  CallMonitor monitor(call, AsTransferProgress(send));
  ExportObserver observer(monitor);
  absl::StatusOr<restore::ExportResult> result = restore::ExportCriuDirectory(
      *store, info.digest, request.criu_directory(), call.caller.uid, &observer, &monitor.cancelled());
  monitor.Stop();
  RK_RETURN_IF_ERROR(result.status());
  v1::TransferEvent event;
  ToProto(info, event.mutable_result()->mutable_image());
  event.mutable_result()->set_files(result->files);
  event.mutable_result()->set_bytes(result->bytes);
  if (result->semaphores > 0) {
    event.mutable_result()->add_warnings(
        absl::StrCat(result->semaphores,
                     result->semaphores == 1 ? " eventfd of the job is a semaphore"
                                             : " eventfds of the job are semaphores",
                     " (EFD_SEMAPHORE), of which CRIU without Rekindle makes ",
                     result->semaphores == 1 ? "a counter" : "counters",
                     ": one read takes all. 'rekindle restore' brings semaphores back"));
  }
  send(event);
  return absl::OkStatus();
}

absl::Status ImportImage(Node& node, const Call& call, const v1::ImportImageRequest& request,
                         const EventSink<v1::TransferEvent>& send) {
  RK_RETURN_IF_ERROR(node.policy().MayAdminister(call.caller, "import images of CRIU's"));
  RK_RETURN_IF_ERROR(CheckAbsolute(request.criu_directory(), "the folder"));
  RK_ASSIGN_OR_RETURN(std::string reference, store::NormalizeReference(request.reference()));
  RK_RETURN_IF_ERROR(CheckNoNameOfFunctions(reference));
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kCreate));
  CallMonitor monitor(call, AsTransferProgress(send));
  TakeInObserver observer(monitor);
  absl::StatusOr<store::ImageInfo> info =
      ckpt::ImportCriuDirectory(*store, request.criu_directory(), reference, request.parent(),
                                call.caller.uid, &observer, &monitor.cancelled());
  monitor.Stop();
  RK_RETURN_IF_ERROR(info.status());
  v1::TransferEvent event;
  ToProto(*info, event.mutable_result()->mutable_image());
  event.mutable_result()->set_bytes(info->stats.logical_bytes);
  send(event);
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
