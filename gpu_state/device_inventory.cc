#include "gpu_state/device_inventory.h"

#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/parallel.h"
#include "base/status.h"
#include "base/timed_await.h"
#include "gpu_state/nvml_abi.h"
#include "gpu_state/pid_namespace.h"

namespace rekindle::gpu {
namespace {

constexpr char kNvmlLibrary[] = "libnvidia-ml.so.1";
// For all that is asked of a GPU; whoever waits for us waits longer.
constexpr absl::Duration kAnswerMayTake = absl::Seconds(10);

class NvmlInventory : public DeviceInventory {
 public:
  absl::Status Open() {
    void* library = ::dlopen(kNvmlLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      return absl::NotFoundError(absl::StrCat("NVIDIA's management library can't be loaded: ", ::dlerror()));
    }
    nvml::InitFunction init = nullptr;
    nvml::DriverVersionFunction ask_version = nullptr;
    auto find = [library](const char* name, auto* function) {
      *function = reinterpret_cast<std::remove_reference_t<decltype(*function)>>(::dlsym(library, name));
      return *function != nullptr;
    };
    find("nvmlErrorString", &error_string_);
    find("nvmlDeviceGetMigMode", &mig_mode_);
    const bool found = find("nvmlInit_v2", &init) && find("nvmlSystemGetDriverVersion", &ask_version) &&
                       find("nvmlDeviceGetCount_v2", &count_) &&
                       find("nvmlDeviceGetHandleByIndex_v2", &by_index_) &&
                       find("nvmlDeviceGetUUID", &uuid_) && find("nvmlDeviceGetName", &name_) &&
                       find("nvmlDeviceGetMemoryInfo", &memory_) &&
                       find("nvmlDeviceGetComputeRunningProcesses_v3", &processes_);
    if (!found) {
      return absl::UnimplementedError(
          absl::StrCat(kNvmlLibrary, " lacks functions that driver 510 and newer have: ", ::dlerror()));
    }
    RK_RETURN_IF_ERROR(Check(init(), "initialising it"));
    char text[nvml::kTextBytes] = "";
    RK_RETURN_IF_ERROR(Check(ask_version(text, sizeof text), "asking for the driver's version"));
    driver_version_ = text;
    return absl::OkStatus();
  }

  std::string driver_version() const override { return driver_version_; }

  absl::StatusOr<DeviceView> Look() override {
    unsigned count = 0;
    RK_RETURN_IF_ERROR(Check(count_(&count), "counting the GPUs"));
    // All at once, each in a thread of its own: one that hangs keeps nobody from the others.
    std::vector<std::shared_ptr<Answer>> answers(count);
    for (unsigned i = 0; i < count; ++i) answers[i] = Ask(i);
    DeviceView view;
    const Deadline deadline(kAnswerMayTake);
    for (unsigned i = 0; i < count; ++i) {
      absl::MutexLock lock(&mutex_);
      const Answer& answer = *answers[i];
      if (!answer.hangs) AwaitUntil(mutex_, absl::Condition(&answer.is_there), deadline);
      if (!answer.is_there) {
        answers[i]->hangs = true;
        hanging_[i] = answers[i];
        AddLost(i, absl::StrCat("no answer within ", absl::FormatDuration(kAnswerMayTake)), &view);
      } else if (answer.result == nvml::kSuccess) {
        view.devices.push_back(answer.device);
        view.uses.insert(view.uses.end(), answer.uses.begin(), answer.uses.end());
      } else if (answer.result != nvml::kNoPermission) {  // else it is none of ours
        AddLost(i, Describe(answer.result), &view);
      }
    }
    return view;
  }

 private:
  // What a GPU tells. Where one of its questions hangs, that may come long after, and until then it is asked
  // no other.
  struct Answer {
    bool is_there = false, hangs = false;  // under mutex_; the rest is written before it is there
    nvml::Return result = nvml::kSuccess;
    GpuDevice device = {};
    std::vector<GpuUse> uses = {};
  };

  std::shared_ptr<Answer> Ask(unsigned number) {
    {
      absl::MutexLock lock(&mutex_);
      const auto hanging = hanging_.find(number);
      if (hanging != hanging_.end() && !hanging->second->is_there) return hanging->second;
      hanging_.erase(number);
    }
    auto answer = std::make_shared<Answer>();
    const absl::Status begun = CatchNoMoreThreads([&] {
      // The helper ends without waiting for it.
      std::thread([this, number, answer] { AskAll(number, *answer); }).detach();
      return absl::OkStatus();
    });
    if (!begun.ok()) AskAll(number, *answer);
    return answer;
  }

  void AskAll(unsigned number, Answer& answer) {
    nvml::Device handle = nullptr;
    answer.result = by_index_(number, &handle);
    if (answer.result == nvml::kSuccess) answer.result = AskNames(number, handle, &answer.device);
    if (answer.result == nvml::kSuccess) {
      AskMemory(handle, &answer.device);
      AskUses(handle, &answer.device, &answer.uses);
      unsigned current = 0, pending = 0;
      answer.device.mig =
          mig_mode_ && mig_mode_(handle, &current, &pending) == nvml::kSuccess && current == 1;
    }
    absl::MutexLock lock(&mutex_);
    answer.is_there = true;
  }

  // By the name that it had as long as it told one.
  void AddLost(unsigned number, const std::string& why, DeviceView* view)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto known = names_.find(number);
    if (known == names_.end()) {
      view->unreachable.push_back(absl::StrCat("GPU number ", number, ": ", why));
      return;
    }
    GpuDevice device;
    device.uuid = known->second.uuid;
    device.model = known->second.model;
    device.memory_known = device.uses_known = false;
    device.lost = true;
    device.trouble = why;
    view->devices.push_back(std::move(device));
  }

  // What a GPU is called, by its number, which stays as long as the library is initialised.
  struct Names {
    std::string uuid, model;
  };

  nvml::Return AskNames(unsigned number, nvml::Device handle, GpuDevice* device) {
    nvml::Return result = Text(uuid_, handle, &device->uuid);
    if (result == nvml::kSuccess) result = Text(name_, handle, &device->model);
    if (result != nvml::kSuccess) return result;
    absl::MutexLock lock(&mutex_);
    names_[number] = {device->uuid, device->model};
    return result;
  }

  void AskMemory(nvml::Device handle, GpuDevice* device) {
    nvml::Memory memory = {};
    const nvml::Return result = memory_(handle, &memory);
    if (result != nvml::kSuccess) return NoteUntold(result, &device->memory_known, device);
    device->total_bytes = memory.total;
    device->free_bytes = memory.free;
  }

  void AskUses(nvml::Device handle, GpuDevice* device, std::vector<GpuUse>* uses) {
    std::vector<nvml::ProcessInfo> processes(64);
    unsigned count = 0;
    nvml::Return result;
    do {
      count = static_cast<unsigned>(processes.size());
      result = processes_(handle, &count, processes.data());
      if (result == nvml::kInsufficientSize) processes.resize(2 * std::max<size_t>(count, processes.size()));
    } while (result == nvml::kInsufficientSize);
    if (result != nvml::kSuccess) return NoteUntold(result, &device->uses_known, device);
    for (unsigned i = 0; i < count; ++i) {
      GpuUse use{static_cast<pid_t>(processes[i].pid), device->uuid, std::nullopt};
      if (IsTold(processes[i].used_bytes)) use.bytes = processes[i].used_bytes;
      uses->push_back(std::move(use));
    }
  }

  // In a container some drivers name a process by its PID there, then look for what it has by that number, as
  // if it were one outside, and find nothing.
  static bool IsTold(unsigned long long bytes) {
    return bytes != nvml::kUnknownBytes && (bytes != 0 || InFirstPidNamespace());
  }

  void NoteUntold(nvml::Return result, bool* known, GpuDevice* device) const {
    *known = false;
    // What the library does not tell of a GPU does not keep this from working.
    device->lost |= result != nvml::kNotSupported && result != nvml::kNoPermission;
    device->trouble = Describe(result);
  }

  static nvml::Return Text(nvml::DeviceTextFunction function, nvml::Device handle, std::string* to) {
    char text[nvml::kTextBytes] = "";
    const nvml::Return result = function(handle, text, sizeof text);
    if (result == nvml::kSuccess) *to = text;
    return result;
  }

  std::string Describe(nvml::Return result) const {
    return absl::StrCat(error_string_ ? error_string_(result) : "error", " (", result, ")");
  }

  absl::Status Check(nvml::Return result, absl::string_view what) const {
    if (result == nvml::kSuccess) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("NVIDIA's management library: ", what, ": ", Describe(result)));
  }

  std::string driver_version_;
  nvml::ErrorStringFunction error_string_ = nullptr;
  nvml::MigModeFunction mig_mode_ = nullptr;
  nvml::DeviceCountFunction count_ = nullptr;
  nvml::DeviceByIndexFunction by_index_ = nullptr;
  nvml::DeviceTextFunction uuid_ = nullptr, name_ = nullptr;
  nvml::DeviceMemoryFunction memory_ = nullptr;
  nvml::ProcessesFunction processes_ = nullptr;
  absl::Mutex mutex_;
  std::map<unsigned, Names> names_ ABSL_GUARDED_BY(mutex_);
  std::map<unsigned, std::shared_ptr<Answer>> hanging_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceInventory>> OpenDeviceInventory() {
  auto inventory = std::make_unique<NvmlInventory>();
  RK_RETURN_IF_ERROR(inventory->Open());
  return inventory;
}

}  // namespace rekindle::gpu
