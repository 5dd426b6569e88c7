// NVIDIA's cuda-checkpoint, for drivers 555 to 565, whose library has no checkpoint functions.
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "gpu_state/checkpoint_driver.h"
#include "gpu_state/gpu_device.h"
#include "gpu_state/utility_failure.h"

namespace rekindle::gpu {
namespace {

constexpr char kProgram[] = "cuda-checkpoint";
// Each run initialises the driver anew.
constexpr absl::Duration kQueryMayTake = absl::Seconds(60);
// There is no bound on how long these may take; whoever waits has one and kills this process.
constexpr absl::Duration kMoveMayTake = absl::Hours(24);

class CheckpointUtility : public CheckpointDriver {
 public:
  absl::Status Open() {
    auto help = RunCommand({kProgram, "--help"}, kQueryMayTake);
    if (!help.ok()) return Annotate(help.status(), "NVIDIA's utility cuda-checkpoint");
    if (!absl::StrContains(help->output, "--action")) {
      // It did not get as far as to tell what it knows.
      if (!help->exit.ok() && !absl::StrContains(help->output, "--toggle")) {
        return absl::InternalError(
            absl::StrCat("NVIDIA's utility cuda-checkpoint can't be used: `cuda-checkpoint --help`: ",
                         help->exit.ToString(), ": ", absl::StripAsciiWhitespace(help->output)));
      }
      return absl::UnimplementedError(
          "NVIDIA's utility cuda-checkpoint knows no --action: driver 555 brought that");
    }
    return absl::OkStatus();
  }

  // It tells none; it is used where the driver is older than these functions.
  int version() const override { return cuda::kFirstVersionWithCheckpointApi - 10; }
  std::string means() const override { return kProgram; }

  absl::StatusOr<ProcessState> State(pid_t pid) override {
    auto asked =
        Run(pid, "--get-state", {kProgram, "--get-state", "--pid", absl::StrCat(pid)}, kQueryMayTake);
    // The driver has no such process.
    if (absl::IsInvalidArgument(asked.status())) return absl::NotFoundError(asked.status().message());
    RK_RETURN_IF_ERROR(asked.status());
    std::string word(absl::StripAsciiWhitespace(asked->output));
    auto state = StateNamed(word);
    if (state) return *state;
    return absl::InternalError(
        absl::StrCat("process ", pid, ": cuda-checkpoint gave the unknown state '", word, "'"));
  }

  absl::StatusOr<pid_t> RestoreThread(pid_t pid) override {
    constexpr char kWhat[] = "--get-restore-tid";
    RK_ASSIGN_OR_RETURN(CommandResult result,
                        Run(pid, kWhat, {kProgram, kWhat, "--pid", absl::StrCat(pid)}, kQueryMayTake));
    int thread = 0;
    if (absl::SimpleAtoi(absl::StripAsciiWhitespace(result.output), &thread)) return thread;
    return absl::InternalError(absl::StrCat("process ", pid, ": cuda-checkpoint ", kWhat,
                                            " gave no thread: ", absl::StripAsciiWhitespace(result.output)));
  }

  absl::Status Lock(pid_t pid, absl::Duration timeout) override {
    absl::Status status =
        Act(pid, Action::kLock, {"--timeout", absl::StrCat(absl::ToInt64Milliseconds(timeout))});
    // Where it does not say why.
    if (absl::IsInternal(status)) {
      auto state = State(pid);
      if (state.ok() && *state == ProcessState::kRunning)
        return absl::DeadlineExceededError(status.message());
    }
    return status;
  }
  absl::Status Checkpoint(pid_t pid) override { return Act(pid, Action::kCheckpoint, {}); }
  absl::Status Restore(pid_t pid, absl::Span<const cuda::GpuPair> pairs) override {
    if (pairs.empty()) return Act(pid, Action::kRestore, {});
    std::string map = absl::StrJoin(pairs, ",", [](std::string* out, const cuda::GpuPair& pair) {
      absl::StrAppend(out, FormatUuid(pair.from), "=", FormatUuid(pair.to));
    });
    return Act(pid, Action::kRestore, {"--device-map", map});
  }
  absl::Status Unlock(pid_t pid) override { return Act(pid, Action::kUnlock, {}); }

 private:
  // What it printed, where it ended well.
  static absl::StatusOr<CommandResult> Run(pid_t pid, absl::string_view what,
                                           const std::vector<std::string>& argv, absl::Duration may_take) {
    absl::StatusOr<CommandResult> result = RunCommand(argv, may_take);
    if (!result.ok()) return UtilityNotRun(pid, what, result.status());
    if (!result->exit.ok()) return UtilityFailure(pid, what, *result);
    return result;
  }

  absl::Status Act(pid_t pid, Action action, std::vector<std::string> more) {
    std::vector<std::string> argv = {kProgram, "--action", std::string(NameOf(action)), "--pid",
                                     absl::StrCat(pid)};
    argv.insert(argv.end(), more.begin(), more.end());
    const absl::Status status =
        Run(pid, absl::StrCat("--action ", NameOf(action)), argv, kMoveMayTake).status();
    // Of the process only its state says whether it uses CUDA; and of a restore wrong GPUs are told.
    const bool wrong_gpus = absl::IsInvalidArgument(status) && action == Action::kRestore && !more.empty();
    const bool as_said = !absl::IsInvalidArgument(status) && !absl::IsNotFound(status);
    return as_said || wrong_gpus ? status : absl::InternalError(status.message());
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointDriver>> OpenCheckpointUtility() {
  auto utility = std::make_unique<CheckpointUtility>();
  RK_RETURN_IF_ERROR(utility->Open());
  return utility;
}

}  // namespace rekindle::gpu
