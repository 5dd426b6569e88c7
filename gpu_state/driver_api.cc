// The driver's checkpoint functions, through dlopen: one binary serves machines with and without a GPU.
#include <dlfcn.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/deadline.h"
#include "base/status.h"
#include "gpu_state/checkpoint_driver.h"

namespace rekindle::gpu {
namespace {

constexpr char kDriverLibrary[] = "libcuda.so.1";
// Functions are asked for as they were in this version at the latest: later ones may take other structures
// than those of cuda_abi.h.
constexpr int kNewestVersionAsked = cuda::kFirstVersionWithGpuPairs;
// For a move that somebody else began to end: that of 141 GB took more than a minute. Who asks may give up
// before.
constexpr absl::Duration kMoveUnderWayMayTake = absl::Minutes(10);
constexpr absl::Duration kLookAgain = absl::Milliseconds(10), kLookAgainLater = absl::Milliseconds(100);

absl::StatusCode CodeFor(cuda::Result result) {
  switch (result) {
    case cuda::kOutOfMemory:
      return absl::StatusCode::kResourceExhausted;
    case cuda::kIllegalState:
      return absl::StatusCode::kFailedPrecondition;
    case cuda::kNotReady:
      return absl::StatusCode::kDeadlineExceeded;
    case cuda::kNotSupported:
      return absl::StatusCode::kUnimplemented;
    case cuda::kNotPermitted:
      return absl::StatusCode::kPermissionDenied;
    case cuda::kSystemDriverMismatch:
      return absl::StatusCode::kFailedPrecondition;
    default:
      return absl::StatusCode::kInternal;
  }
}

class DriverApi : public CheckpointDriver {
 public:
  absl::Status Open() {
    // Never closed: the driver has threads of its own.
    void* library = ::dlopen(kDriverLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      return absl::NotFoundError(absl::StrCat("the NVIDIA driver can't be loaded: ", ::dlerror(),
                                              "; install it, or end the use of CUDA"));
    }
    auto symbol = [library](const char* name) { return ::dlsym(library, name); };
    init_ = reinterpret_cast<cuda::InitFunction>(symbol("cuInit"));
    auto get_version = reinterpret_cast<cuda::DriverGetVersionFunction>(symbol("cuDriverGetVersion"));
    get_address_ = reinterpret_cast<cuda::GetProcAddressFunction>(symbol("cuGetProcAddress"));
    error_name_ = reinterpret_cast<cuda::GetErrorTextFunction>(symbol("cuGetErrorName"));
    error_string_ = reinterpret_cast<cuda::GetErrorTextFunction>(symbol("cuGetErrorString"));
    if (!init_ || !get_version || !get_address_) {
      return absl::UnimplementedError(absl::StrCat(kDriverLibrary,
                                                   " lacks cuInit, cuDriverGetVersion or "
                                                   "cuGetProcAddress: it is older than CUDA 11.3"));
    }
    RK_RETURN_IF_ERROR(Check(get_version(&version_), "asking for the driver's version"));
    const bool found =
        Find("cuCheckpointProcessGetState", &get_state_) && Find("cuCheckpointProcessLock", &lock_) &&
        Find("cuCheckpointProcessCheckpoint", &checkpoint_) &&
        Find("cuCheckpointProcessRestore", &restore_) && Find("cuCheckpointProcessUnlock", &unlock_);
    if (!found) {
      return absl::UnimplementedError(
          absl::StrCat("the NVIDIA driver (CUDA ", version_ / 1000, ".", version_ % 1000 / 10,
                       ") has no checkpoint functions: driver 570 (CUDA 12.8) brought them"));
    }
    (void)Find("cuCheckpointProcessGetRestoreThreadId", &restore_thread_);
    const cuda::Result result = init_(0);
    absl::Status status = Check(result, "initialising the NVIDIA driver");
    if (result == cuda::kSystemDriverMismatch) {
      return WithMessage(status,
                         absl::StrCat(status.message(),
                                      "; its library and its kernel module are of different versions, as "
                                      "after an upgrade whose module is not loaded yet (`cat "
                                      "/proc/driver/nvidia/version` and `ldconfig -p | grep libcuda` show "
                                      "both): parked jobs need the version that they were parked with"));
    }
    return result == cuda::kNoDevice ? absl::NotFoundError(status.message()) : status;
  }

  int version() const override { return version_; }
  std::string means() const override { return kDriverLibrary; }

  absl::StatusOr<ProcessState> State(pid_t pid) override {
    const Deadline deadline(kMoveUnderWayMayTake);
    for (absl::Duration pause = kLookAgain;; pause = std::min(2 * pause, kLookAgainLater)) {
      ProcessState state = ProcessState::kFailed;
      const cuda::Result result = get_state_(pid, &state);
      if (result != cuda::kSuccess) return NoState(pid, result);
      const int number = static_cast<int>(state);
      // Older drivers answer once the move has ended; newer ones at once, with what it is.
      if (number == cuda::kStateCheckpointing || number == cuda::kStateRestoring) {
        if (!deadline.passed()) {
          absl::SleepFor(pause);
          continue;
        }
        return absl::UnavailableError(absl::StrCat(
            "process ", pid, ": its device memory is being moved by somebody else, and that does not end"));
      }
      if (number >= 0 && number <= static_cast<int>(ProcessState::kFailed)) return state;
      return absl::InternalError(absl::StrCat("process ", pid, ": the NVIDIA driver says that its state is ",
                                              number, ", which this version of Rekindle does not know"));
    }
  }

  absl::StatusOr<pid_t> RestoreThread(pid_t pid) override {
    if (restore_thread_ == nullptr)
      return absl::UnimplementedError("the NVIDIA driver does not tell in which thread it works");
    int thread = 0;
    const cuda::Result result = restore_thread_(pid, &thread);
    const absl::Status status = CheckOf(pid, result, "asking for the driver's thread");
    // So it has none.
    if (result == cuda::kNotInitialized || result == cuda::kInvalidValue)
      return absl::NotFoundError(status.message());
    RK_RETURN_IF_ERROR(status);
    return thread;
  }

  absl::Status Lock(pid_t pid, absl::Duration timeout) override {
    cuda::LockArgs args = {};
    // 0 would mean for ever.
    args.timeout_ms = static_cast<uint32_t>(std::max<int64_t>(1, absl::ToInt64Milliseconds(timeout)));
    return CheckOf(pid, lock_(pid, &args), "locking the CUDA calls");
  }

  absl::Status Checkpoint(pid_t pid) override {
    cuda::CheckpointArgs args = {};
    return CheckOf(pid, checkpoint_(pid, &args), "moving device memory to host memory");
  }

  absl::Status Restore(pid_t pid, absl::Span<const cuda::GpuPair> pairs) override {
    cuda::RestoreArgs args = {};
    if (!pairs.empty()) {
      if (version_ < cuda::kFirstVersionWithGpuPairs) {
        return absl::UnimplementedError(
            absl::StrCat("process ", pid,
                         ": moving GPU state onto another GPU needs driver 580 (CUDA 13.0); this is CUDA ",
                         version_ / 1000, ".", version_ % 1000 / 10));
      }
      args.pairs = pairs.data();
      args.pair_count = static_cast<uint32_t>(pairs.size());
    }
    const cuda::Result result = restore_(pid, &args);
    absl::Status status = CheckOf(pid, result, "moving host memory back to the device");
    if (result == cuda::kInvalidValue && !pairs.empty()) return absl::InvalidArgumentError(status.message());
    if (result != cuda::kOperatingSystem) return status;
    // Seen with 580 and 595, whatever is free by then.
    return Annotate(
        status,
        absl::StrCat("a process whose device memory once did not fit when it was to come back can't be "
                     "brought back by some drivers any more: then ",
                     kOnlyANewStartHelps));
  }

  absl::Status Unlock(pid_t pid) override {
    cuda::UnlockArgs args = {};
    return CheckOf(pid, unlock_(pid, &args), "unlocking the CUDA calls");
  }

 private:
  template <typename Function>
  bool Find(const char* name, Function* function) const {
    void* found = nullptr;
    const int version = std::min(version_, kNewestVersionAsked);
    if (get_address_(name, &found, version, 0) != cuda::kSuccess || found == nullptr) return false;
    *function = reinterpret_cast<Function>(found);
    return true;
  }

  std::string Text(cuda::Result result) const {
    const char *name = nullptr, *text = nullptr;
    if (error_name_) error_name_(result, &name);
    if (error_string_) error_string_(result, &text);
    return absl::StrCat(name ? name : "CUDA error", " (", result, ")", text ? ": " : "", text ? text : "");
  }

  // Why a process has no state. We are initialised: where somebody is not, it is the process.
  absl::Status NoState(pid_t pid, cuda::Result result) const {
    absl::Status status = CheckOf(pid, result, "asking for the CUDA state");
    switch (result) {
      case cuda::kNotInitialized:
      case cuda::kDeinitialized:
      case cuda::kInvalidContext:
      case cuda::kInvalidValue:
        return absl::NotFoundError(status.message());
      case cuda::kOperatingSystem:
        // As said of a PID that is nobody's.
        if (::kill(pid, 0) != 0 && errno == ESRCH) return absl::NotFoundError(status.message());
        return Annotate(status, "the driver can't get at it");
      default:
        return status;
    }
  }

  absl::Status Check(cuda::Result result, absl::string_view what) const {
    if (result == cuda::kSuccess) return absl::OkStatus();
    return absl::Status(CodeFor(result), absl::StrCat(what, ": ", Text(result)));
  }

  absl::Status CheckOf(pid_t pid, cuda::Result result, absl::string_view what) const {
    if (result == cuda::kSuccess) return absl::OkStatus();
    return Check(result, absl::StrCat("process ", pid, ": ", what));
  }

  int version_ = 0;
  cuda::InitFunction init_ = nullptr;
  cuda::GetProcAddressFunction get_address_ = nullptr;
  cuda::GetErrorTextFunction error_name_ = nullptr, error_string_ = nullptr;
  cuda::GetStateFunction get_state_ = nullptr;
  cuda::GetRestoreThreadIdFunction restore_thread_ = nullptr;
  cuda::LockFunction lock_ = nullptr;
  cuda::CheckpointFunction checkpoint_ = nullptr;
  cuda::RestoreFunction restore_ = nullptr;
  cuda::UnlockFunction unlock_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointDriver>> OpenDriverApi() {
  auto driver = std::make_unique<DriverApi>();
  RK_RETURN_IF_ERROR(driver->Open());
  return driver;
}

absl::StatusOr<std::unique_ptr<CheckpointDriver>> OpenCheckpointDriver() {
  auto driver = OpenDriverApi();
  if (driver.ok() || !absl::IsUnimplemented(driver.status())) return driver;
  auto utility = OpenCheckpointUtility();
  if (utility.ok()) return utility;
  return BothFailures(driver.status(), utility.status());
}

}  // namespace rekindle::gpu
