// A job that keeps numbers in device memory, steps them with kernels, and after each step checks all of them
// against what the host knows they must be. Whoever watches reads its state file: "STEP DIGEST", where the
// digest depends on nothing but the options and the step. Ends with 1 and a message on the first wrong
// number.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "tests/gpu_jobs/driver_api.h"
#include "tests/gpu_jobs/kernels.h"
#include "tests/gpu_jobs/state_file.h"
#include "tests/gpu_jobs/vector_block.h"

namespace rekindle::gpu_jobs {
namespace {

constexpr char kUsage[] =
    "usage: gpu_vector_job --state-file FILE [option ...]\n"
    "  --bytes N       device memory per GPU (16 MiB)\n"
    "  --gpus K        how many (1), from --first-gpu G (0) on\n"
    "  --contexts C    per GPU (1: the primary one)\n"
    "  --streams S     per context (1)\n"
    "  --steps N       end after so many (0: never)\n"
    "  --step-ms M     pause between steps (10)\n"
    "  --seed X        of the numbers (1)\n"
    "  --spin-ms M     each step also runs a kernel that takes so long; meanwhile the state file's line "
    "ends\n"
    "                  in \"spinning\"\n"
    "  --first-call C  that a step begins with: context (its synchronize), stream, event, copy\n"
    "  --sparse        uses but 1 MiB of each stream's part; the rest is allocated and never touched\n"
    "  --hold F        while F exists, waits at a step's end, where no CUDA call is under way; the state\n"
    "                  file's line then ends in \"held\"\n"
    "  --grow-bytes N  allocates so much more, once, when FILE.grow is there\n"
    "  --managed       unified memory\n"
    "  --ipc           shares memory with other processes: its handle lies in FILE.ipc\n"
    "  --ipc-open F    opens the memory whose handle lies in F\n"
    "  --fork          has a child without CUDA calls of its own, forked once memory is there\n"
    "  --fork-opens F  the device file that this child has open\n"
    "  --init-only     calls cuInit and no more\n"
    "  --load-only     loads libcuda.so.1 and no more\n"
    "  --print-ptx     prints its device code and ends\n";

constexpr uint64_t kSparseBytes = 1 << 20;
constexpr uint64_t kLookAgainMs = 2;

constexpr std::pair<const char*, FirstCall> kFirstCalls[] = {{"", FirstCall::kNone},
                                                             {"context", FirstCall::kContextSynchronize},
                                                             {"stream", FirstCall::kStreamSynchronize},
                                                             {"event", FirstCall::kEventSynchronize},
                                                             {"copy", FirstCall::kCopy}};

struct Options {
  std::string state_file, ipc_open, first_call_name, fork_opens, hold;
  FirstCall first_call = FirstCall::kNone;
  uint64_t bytes = 16 << 20, gpus = 1, first_gpu = 0, contexts = 1, streams = 1, steps = 0, step_ms = 10,
           seed = 1, spin_ms = 0, grow_bytes = 0;
  bool sparse = false, managed = false, ipc = false, forks = false, init_only = false, load_only = false,
       print_ptx = false;
};

bool Parse(int argc, char** argv, Options* options) {
  const std::vector<std::pair<const char*, uint64_t*>> numbers = {
      {"--bytes", &options->bytes},         {"--gpus", &options->gpus},
      {"--first-gpu", &options->first_gpu}, {"--contexts", &options->contexts},
      {"--streams", &options->streams},     {"--steps", &options->steps},
      {"--step-ms", &options->step_ms},     {"--seed", &options->seed},
      {"--spin-ms", &options->spin_ms},     {"--grow-bytes", &options->grow_bytes}};
  const std::vector<std::pair<const char*, std::string*>> texts = {
      {"--state-file", &options->state_file},
      {"--ipc-open", &options->ipc_open},
      {"--fork-opens", &options->fork_opens},
      {"--hold", &options->hold},
      {"--first-call", &options->first_call_name}};
  const std::vector<std::pair<const char*, bool*>> flags = {{"--sparse", &options->sparse},
                                                            {"--managed", &options->managed},
                                                            {"--ipc", &options->ipc},
                                                            {"--fork", &options->forks},
                                                            {"--init-only", &options->init_only},
                                                            {"--load-only", &options->load_only},
                                                            {"--print-ptx", &options->print_ptx}};
  for (int i = 1; i < argc; ++i) {
    bool known = false;
    for (const auto& [name, flag] : flags) {
      if (std::strcmp(argv[i], name) == 0) *flag = known = true;
    }
    for (const auto& [name, text] : texts) {
      if (known || i + 1 == argc || std::strcmp(argv[i], name) != 0) continue;
      *text = argv[++i];
      known = true;
    }
    for (const auto& [name, number] : numbers) {
      if (known || i + 1 == argc || std::strcmp(argv[i], name) != 0) continue;
      char* end = nullptr;
      *number = std::strtoull(argv[++i], &end, 10);
      known = *end == '\0';
    }
    if (!known) return false;
  }
  if (options->print_ptx) return true;
  const auto* named = std::find_if(std::begin(kFirstCalls), std::end(kFirstCalls),
                                   [&](const auto& each) { return options->first_call_name == each.first; });
  if (named == std::end(kFirstCalls)) return false;
  options->first_call = named->second;
  const uint64_t blocks = options->contexts * options->streams;
  return !options->state_file.empty() && options->gpus > 0 && blocks > 0 && options->bytes / blocks >= 64;
}

// Without device memory there is nothing to check: it only shows that it lives.
[[noreturn]] void RunWithoutMemory(const Options& options) {
  for (uint64_t step = 0; options.steps == 0 || step <= options.steps; ++step) {
    WriteState(options.state_file, step, 0, "");
    Pause(options.step_ms);
  }
  std::exit(0);
}

// As the workers that load data for a training, which end with it.
void Fork(const Options& options) {
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) Die("cannot fork");
  if (child > 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (!options.fork_opens.empty() && open(options.fork_opens.c_str(), O_RDWR) < 0)
    Die("cannot open %s", options.fork_opens.c_str());
  while (getppid() == parent) pause();
  _exit(0);
}

class VectorJob {
 public:
  explicit VectorJob(const Options& options) : options_(options), api_(LoadDriver()) {}
  void Allocate();
  void Run();

 private:
  void ShareMemory();
  void GrowIfTold();
  void WaitWhileHeld(uint64_t step, uint64_t digest) const;

  const Options& options_;
  const DriverApi& api_;
  std::vector<std::unique_ptr<Kernels>> kernels_;
  std::vector<std::unique_ptr<VectorBlock>> blocks_;
  bool has_grown_ = false;
};

void VectorJob::Allocate() {
  Check(api_.cuInit(0), "cuInit");
  if (options_.init_only) RunWithoutMemory(options_);
  int devices = 0;
  Check(api_.cuDeviceGetCount(&devices), "cuDeviceGetCount");
  if (options_.first_gpu + options_.gpus > static_cast<uint64_t>(devices)) {
    Die("there are %d GPUs, asked for %llu from number %llu on", devices,
        static_cast<unsigned long long>(options_.gpus), static_cast<unsigned long long>(options_.first_gpu));
  }
  const uint64_t part = options_.bytes / (options_.contexts * options_.streams);
  for (uint64_t gpu = 0; gpu < options_.gpus; ++gpu) {
    int device = 0;
    Check(api_.cuDeviceGet(&device, static_cast<int>(options_.first_gpu + gpu)), "cuDeviceGet");
    for (uint64_t c = 0; c < options_.contexts; ++c) {
      Context* context = nullptr;
      if (c == 0) {
        Check(api_.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
      } else {
        Check(api_.cuCtxCreate_v2(&context, 0, device), "cuCtxCreate");
      }
      Check(api_.cuCtxSetCurrent(context), "cuCtxSetCurrent");
      kernels_.push_back(std::make_unique<Kernels>(api_));
      for (uint64_t s = 0; s < options_.streams; ++s) {
        const uint64_t seed = options_.seed * 1'000'003 + blocks_.size();
        const uint64_t used = options_.sparse ? std::min(part, kSparseBytes) : part;
        blocks_.push_back(
            std::make_unique<VectorBlock>(api_, context, *kernels_.back(), used, seed, options_.managed));
        DeviceAddress untouched = 0;
        if (used < part) Check(api_.cuMemAlloc_v2(&untouched, part - used), "cuMemAlloc");
      }
    }
  }
  ShareMemory();
}

void VectorJob::ShareMemory() {
  IpcHandle handle;
  if (options_.ipc) {
    Check(api_.cuIpcGetMemHandle(&handle, blocks_[0]->memory()), "cuIpcGetMemHandle");
    WriteFile(options_.state_file + ".ipc", &handle, sizeof(handle));
  }
  if (!options_.ipc_open.empty()) {
    FILE* file = std::fopen(options_.ipc_open.c_str(), "r");
    if (file == nullptr || std::fread(&handle, sizeof(handle), 1, file) != 1) {
      Die("cannot read a handle from %s", options_.ipc_open.c_str());
    }
    std::fclose(file);
    DeviceAddress address = 0;
    constexpr unsigned kLazyEnablePeerAccess = 1;
    Check(api_.cuIpcOpenMemHandle_v2(&address, handle, kLazyEnablePeerAccess), "cuIpcOpenMemHandle");
  }
}

void VectorJob::GrowIfTold() {
  if (options_.grow_bytes == 0 || has_grown_) return;
  if (::access((options_.state_file + ".grow").c_str(), F_OK) != 0) return;
  DeviceAddress untouched = 0;
  Check(api_.cuMemAlloc_v2(&untouched, options_.grow_bytes), "cuMemAlloc");
  has_grown_ = true;
}

void VectorJob::WaitWhileHeld(uint64_t step, uint64_t digest) const {
  const auto held = [this] { return !options_.hold.empty() && ::access(options_.hold.c_str(), F_OK) == 0; };
  if (!held()) return;
  WriteState(options_.state_file, step, digest, " held");
  while (held()) Pause(kLookAgainMs);
}

void VectorJob::Run() {
  uint64_t digest = 0;
  for (uint64_t step = 1; options_.steps == 0 || step <= options_.steps; ++step) {
    if (options_.spin_ms != 0) {
      blocks_[0]->Spin(options_.spin_ms);
      WriteState(options_.state_file, step - 1, digest, " spinning");
    }
    GrowIfTold();
    blocks_[0]->Call(options_.first_call);
    for (auto& block : blocks_) block->BeginStep(step);
    digest = 0;
    for (auto& block : blocks_) digest = digest * 31 + block->EndStep(step);
    WriteState(options_.state_file, step, digest, "");
    Pause(options_.step_ms);
    WaitWhileHeld(step, digest);
  }
}

}  // namespace
}  // namespace rekindle::gpu_jobs

int main(int argc, char** argv) {
  using namespace rekindle::gpu_jobs;
  Options options;
  if (!Parse(argc, argv, &options)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  if (options.print_ptx) {
    std::fputs(kKernels, stdout);
    return 0;
  }
  if (options.load_only) {
    LoadDriver();
    RunWithoutMemory(options);
  }
  VectorJob job(options);
  job.Allocate();
  if (options.forks) Fork(options);
  job.Run();
  return 0;
}
