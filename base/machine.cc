#include "base/machine.h"

#include <sys/utsname.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status.h"

namespace rekindle {
namespace {

constexpr char kLack[] = "rekindle/lack-of-machine";

}  // namespace

absl::StatusOr<Machine> ThisMachine() {
  Machine machine;
  utsname names;
  if (::uname(&names) != 0) return ErrnoStatus(errno, "asking for the kernel's name");
  machine.kernel = names.release;
  machine.architecture = names.machine;
  machine.boot_id = ThisBootId();
  if (machine.boot_id.empty()) return absl::UnavailableError("/proc/sys/kernel/random/boot_id can't be read");
  RK_ASSIGN_OR_RETURN(std::string cpuinfo, ReadFile("/proc/cpuinfo"));
  for (absl::string_view line : absl::StrSplit(cpuinfo, '\n')) {
    std::pair<absl::string_view, absl::string_view> field = absl::StrSplit(line, absl::MaxSplits(':', 1));
    absl::string_view key = absl::StripAsciiWhitespace(field.first);
    if (key != "flags" && key != "Features") continue;
    machine.cpu_features = absl::StrSplit(field.second, ' ', absl::SkipWhitespace());
    std::sort(machine.cpu_features.begin(), machine.cpu_features.end());
    break;
  }
  return machine;
}

absl::Status LackOfMachine(const absl::Status& status) {
  absl::Status marked = status;
  marked.SetPayload(kLack, absl::Cord());
  return marked;
}

bool IsLackOfMachine(const absl::Status& status) { return status.GetPayload(kLack).has_value(); }

std::string ThisBootId() {
  static const auto& id =
      *new std::string(absl::StripAsciiWhitespace(ReadFile("/proc/sys/kernel/random/boot_id").value_or("")));
  return id;
}

std::string ThisMachineId() {
  const std::string content = ReadFile("/etc/machine-id").value_or("");
  const absl::string_view id = absl::StripAsciiWhitespace(content);
  return id == "uninitialized" ? "" : std::string(id);
}

bool IsOtherMachine(absl::string_view id) { return !id.empty() && id != ThisMachineId(); }

std::string ThisHostName() {
  utsname names;
  return ::uname(&names) == 0 ? names.nodename : "";
}

absl::StatusOr<uint64_t> AvailableMemoryBytes() {
  RK_ASSIGN_OR_RETURN(const std::string meminfo, ReadFile("/proc/meminfo"));
  return AvailableMemoryIn(meminfo, ReadFile("/proc/sys/vm/overcommit_memory").value_or(""));
}

absl::StatusOr<uint64_t> AvailableMemoryIn(absl::string_view meminfo, absl::string_view overcommit) {
  std::map<absl::string_view, uint64_t> bytes;
  for (absl::string_view line : absl::StrSplit(meminfo, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipWhitespace());
    uint64_t kib = 0;
    if (words.size() >= 2 && absl::SimpleAtoi(words[1], &kib)) bytes[words[0]] = kib * 1024;
  }
  const auto available = bytes.find("MemAvailable:");
  if (available == bytes.end()) return absl::InternalError("reading /proc/meminfo: it has no MemAvailable");
  const auto limit = bytes.find("CommitLimit:"), promised = bytes.find("Committed_AS:");
  if (absl::StripAsciiWhitespace(overcommit) != "2" || limit == bytes.end() || promised == bytes.end())
    return available->second;
  return std::min(available->second, limit->second - std::min(limit->second, promised->second));
}

}  // namespace rekindle
