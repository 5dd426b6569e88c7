// cuda-checkpoint: NVIDIA's utility, as far as its command line goes, for processes on the simulated driver.
// It works with simulated drivers that are older than the functions of the driver API, as NVIDIA's does.
#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "gpu_state/cuda_abi.h"
#include "tests/gpu_sim/wire.h"

namespace rekindle::gpu_sim {
namespace {

using gpu::cuda::GpuPair;
using gpu::cuda::Result;

constexpr int kFirstVersionWithUtility = 12040;
constexpr int kFirstVersionWithActions = 12050;

constexpr char kHelp[] =
    "CUDA checkpoint and restore utility.\n"
    "Toggle the state of CUDA within a process between suspended and running.\n"
    "    --get-state --pid PID\n"
    "    --get-restore-tid --pid PID\n"
    "    --toggle --pid PID [--device-map OLD=NEW,...]\n"
    "    --action lock|checkpoint|restore|unlock --pid PID [--timeout MS] [--device-map OLD=NEW,...]\n"
    "    --help\n";
constexpr const char* kStates[] = {"running", "locked", "checkpointed", "failed"};

struct Driver {
  gpu::cuda::InitFunction init = nullptr;
  gpu::cuda::DriverGetVersionFunction version = nullptr;
  gpu::cuda::GetErrorTextFunction error_text = nullptr;
  Result (*call)(int, int, unsigned, const GpuPair*, unsigned, int*) = nullptr;

  bool Load();
};

bool Driver::Load() {
  char own[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", own, sizeof(own));
  std::string path(own, length > 0 ? static_cast<size_t>(length) : 0);
  path = path.substr(0, path.rfind('/') + 1) + "libcuda.so.1";
  void* library = dlopen(access(path.c_str(), R_OK) == 0 ? path.c_str() : "libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return false;
  init = reinterpret_cast<decltype(init)>(dlsym(library, "cuInit"));
  version = reinterpret_cast<decltype(version)>(dlsym(library, "cuDriverGetVersion"));
  error_text = reinterpret_cast<decltype(error_text)>(dlsym(library, "cuGetErrorString"));
  call = reinterpret_cast<decltype(call)>(dlsym(library, "rekindle_gpu_sim_checkpoint"));
  return init != nullptr && version != nullptr && error_text != nullptr && call != nullptr;
}

struct Command {
  std::string what;  // get-state, get-restore-tid, toggle, or an action
  bool is_action = false;
  int pid = 0;
  unsigned timeout_ms = 0;
  std::vector<GpuPair> pairs;
};

bool ParseDeviceMap(std::string text, std::vector<GpuPair>* pairs) {
  text += ',';
  for (size_t from = 0; from < text.size();) {
    const size_t comma = text.find(',', from), equals = text.find('=', from);
    GpuPair pair;
    if (equals == std::string::npos || equals > comma ||
        !UuidFromText(text.substr(from, equals - from), &pair.from) ||
        !UuidFromText(text.substr(equals + 1, comma - equals - 1), &pair.to)) {
      return false;
    }
    pairs->push_back(pair);
    from = comma + 1;
  }
  return true;
}

bool Parse(const std::vector<std::string>& words, Command* command) {
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const bool last = i + 1 == words.size();
    if (word == "--get-state" || word == "--get-restore-tid" || word == "--toggle") {
      command->what = word.substr(2);
    } else if (last) {
      return false;
    } else if (word == "--action") {
      command->what = words[++i];
      command->is_action = true;
    } else if (word == "--pid") {
      command->pid = std::atoi(words[++i].c_str());
    } else if (word == "--timeout") {
      command->timeout_ms = static_cast<unsigned>(std::atoi(words[++i].c_str()));
    } else if (word == "--device-map") {
      if (!ParseDeviceMap(words[++i], &command->pairs)) return false;
    } else {
      return false;
    }
  }
  Call call;
  const bool known = !command->is_action || (CallFromName(command->what, &call) && call <= Call::kUnlock);
  return known && !command->what.empty() && command->pid > 0;
}

class Runner {
 public:
  Runner(const Driver& driver, const Command& command) : driver_(driver), command_(command) {}

  int Run() {
    int version = 0;
    driver_.version(&version);
    const bool too_old =
        version < (command_.what == "toggle" ? kFirstVersionWithUtility : kFirstVersionWithActions) ||
        (!command_.pairs.empty() && version < gpu::cuda::kFirstVersionWithGpuPairs);
    if (too_old) return Report(gpu::cuda::kNotSupported);
    const Result result = driver_.init(0);
    if (result == gpu::cuda::kSuccess) return Report(Act());
    std::fprintf(stderr, "Error initializing CUDA: \"%s\"\n", TextOf(result));
    return 1;
  }

 private:
  Result Do(Call call, int* value) {
    const bool restoring = call == Call::kRestore;
    return driver_.call(static_cast<int>(call), command_.pid, command_.timeout_ms,
                        restoring ? command_.pairs.data() : nullptr,
                        restoring ? static_cast<unsigned>(command_.pairs.size()) : 0, value);
  }

  Result Act() {
    int value = 0;
    if (command_.what == "get-state") {
      const Result result = Do(Call::kState, &value);
      if (result == gpu::cuda::kSuccess) std::puts(kStates[value]);
      return result;
    }
    if (command_.what == "get-restore-tid") {
      const Result result = Do(Call::kRestoreThread, &value);
      if (result == gpu::cuda::kSuccess) std::printf("%d\n", value);
      return result;
    }
    if (command_.what == "toggle") {
      Result result = Do(Call::kState, &value);
      if (result != gpu::cuda::kSuccess) return result;
      const bool running = value == static_cast<int>(gpu::cuda::ProcessState::kRunning);
      result = Do(running ? Call::kLock : Call::kRestore, &value);
      if (result != gpu::cuda::kSuccess) return result;
      return Do(running ? Call::kCheckpoint : Call::kUnlock, &value);
    }
    Call call;
    CallFromName(command_.what, &call);
    return Do(call, &value);
  }

  int Report(Result result) {
    if (result == gpu::cuda::kSuccess) return 0;
    std::fprintf(stderr, "Could not %s process %d: \"%s\"\n", command_.what.c_str(), command_.pid,
                 TextOf(result));
    return 1;
  }

  const char* TextOf(Result result) const {
    const char* text = nullptr;
    driver_.error_text(result, &text);
    return text == nullptr ? "unknown error" : text;
  }

  const Driver& driver_;
  const Command& command_;
};

}  // namespace
}  // namespace rekindle::gpu_sim

int main(int argc, char** argv) {
  using namespace rekindle::gpu_sim;
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words == std::vector<std::string>{"--help"}) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  Command command;
  if (!Parse(words, &command)) {
    std::fputs(kHelp, stderr);
    return 1;
  }
  Driver driver;
  if (!driver.Load()) {
    std::fprintf(stderr, "cuda-checkpoint: no simulated libcuda.so.1 beside this program\n");
    return 1;
  }
  return Runner(driver, command).Run();
}
