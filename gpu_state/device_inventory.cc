#include "gpu_state/device_inventory.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "gpu_state/nvml_abi.h"

namespace rekindle::gpu {
namespace {

constexpr char kNvmlLibrary[] = "libnvidia-ml.so.1";

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

  absl::StatusOr<std::vector<GpuDevice>> Devices() override {
    std::vector<GpuDevice> devices;
    absl::Status status = ForEach([&](nvml::Device handle, const std::string& uuid) -> absl::Status {
      GpuDevice device;
      device.uuid = uuid;
      RK_ASSIGN_OR_RETURN(device.model, Text(name_, handle, "asking for a GPU's name"));
      nvml::Memory memory = {};
      RK_RETURN_IF_ERROR(Check(memory_(handle, &memory), absl::StrCat("asking for the memory of ", uuid)));
      device.total_bytes = memory.total;
      device.free_bytes = memory.free;
      unsigned current = 0, pending = 0;
      device.mig = mig_mode_ && mig_mode_(handle, &current, &pending) == nvml::kSuccess && current == 1;
      devices.push_back(std::move(device));
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return devices;
  }

  absl::StatusOr<std::vector<GpuUse>> Uses() override {
    std::vector<GpuUse> uses;
    absl::Status status = ForEach([&](nvml::Device handle, const std::string& uuid) -> absl::Status {
      std::vector<nvml::ProcessInfo> processes(64);
      unsigned count = 0;
      nvml::Return result;
      do {
        count = static_cast<unsigned>(processes.size());
        result = processes_(handle, &count, processes.data());
        if (result == nvml::kInsufficientSize)
          processes.resize(2 * std::max<size_t>(count, processes.size()));
      } while (result == nvml::kInsufficientSize);
      RK_RETURN_IF_ERROR(Check(result, absl::StrCat("asking who uses ", uuid)));
      for (unsigned i = 0; i < count; ++i) {
        GpuUse use{static_cast<pid_t>(processes[i].pid), uuid, std::nullopt};
        if (processes[i].used_bytes != nvml::kUnknownBytes) use.bytes = processes[i].used_bytes;
        uses.push_back(std::move(use));
      }
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return uses;
  }

 private:
  template <typename Body>
  absl::Status ForEach(Body body) {
    unsigned count = 0;
    RK_RETURN_IF_ERROR(Check(count_(&count), "counting the GPUs"));
    for (unsigned i = 0; i < count; ++i) {
      nvml::Device handle = nullptr;
      // One that has fallen off the bus, or that we may not use, does not keep us from the others.
      if (by_index_(i, &handle) != nvml::kSuccess) continue;
      RK_ASSIGN_OR_RETURN(std::string uuid, Text(uuid_, handle, "asking for a GPU's UUID"));
      RK_RETURN_IF_ERROR(body(handle, uuid));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Text(nvml::DeviceTextFunction function, nvml::Device handle,
                                   absl::string_view what) const {
    char text[nvml::kTextBytes] = "";
    RK_RETURN_IF_ERROR(Check(function(handle, text, sizeof text), what));
    return std::string(text);
  }

  absl::Status Check(nvml::Return result, absl::string_view what) const {
    if (result == nvml::kSuccess) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("NVIDIA's management library: ", what, ": ",
                                            error_string_ ? error_string_(result) : "error", " (", result,
                                            ")"));
  }

  std::string driver_version_;
  nvml::ErrorStringFunction error_string_ = nullptr;
  nvml::MigModeFunction mig_mode_ = nullptr;
  nvml::DeviceCountFunction count_ = nullptr;
  nvml::DeviceByIndexFunction by_index_ = nullptr;
  nvml::DeviceTextFunction uuid_ = nullptr, name_ = nullptr;
  nvml::DeviceMemoryFunction memory_ = nullptr;
  nvml::ProcessesFunction processes_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceInventory>> OpenDeviceInventory() {
  auto inventory = std::make_unique<NvmlInventory>();
  RK_RETURN_IF_ERROR(inventory->Open());
  return inventory;
}

}  // namespace rekindle::gpu
