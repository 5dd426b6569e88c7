#include "daemon/seen_processes.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/log.h"
#include "base/machine.h"

namespace rekindle::daemon {
namespace {

constexpr char kFolder[] = "/members";

// The boot, then a line for each.
std::string TextOf(const std::vector<SeenProcess>& processes) {
  std::string text = absl::StrCat(ThisBootId(), "\n");
  for (const SeenProcess& process : processes)
    absl::StrAppend(&text, process.pid, " ", process.start_ticks, "\n");
  return text;
}

std::vector<SeenProcess> ProcessesOf(absl::string_view text) {
  std::vector<SeenProcess> processes;
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (lines[0] != ThisBootId()) return processes;
  for (const absl::string_view line : lines) {
    const std::pair<absl::string_view, absl::string_view> numbers = absl::StrSplit(line, ' ');
    SeenProcess process;
    if (absl::SimpleAtoi(numbers.first, &process.pid) &&
        absl::SimpleAtoi(numbers.second, &process.start_ticks))
      processes.push_back(process);
  }
  return processes;
}

}  // namespace

SeenProcesses::SeenProcesses(absl::string_view runtime_directory, absl::string_view mark)
    : path_(absl::StrCat(runtime_directory, kFolder, "/", mark)),
      processes_(ProcessesOf(ReadFile(path_).value_or(""))) {}

void SeenProcesses::Note(std::vector<SeenProcess> processes) {
  if (processes == processes_ && written_) return;
  processes_ = std::move(processes);
  absl::Status written = MakeDirectories(path_.substr(0, path_.rfind('/')));
  if (written.ok()) written = ReplaceFile(path_, TextOf(processes_));  // none of them outlives a power cut
  if (!written.ok() && written_) {
    Log(LogLevel::kWarning,
        absl::StrCat("which processes a supervised job has can't be noted, so a daemon that starts now would "
                     "not know those that have left its tree; it is tried again, so make room or mend: ",
                     written.message()));
  }
  written_ = written.ok();
}

void SeenProcesses::Forget() {
  processes_.clear();
  written_ = true;
  if (absl::Status removed = RemoveTree(path_); !removed.ok()) Log(LogLevel::kDebug, removed.message());
}

}  // namespace rekindle::daemon
