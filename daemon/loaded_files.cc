#include "daemon/loaded_files.h"

#include <sys/stat.h>
#include <time.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/proc_text.h"
#include "base/utf8.h"

namespace rekindle::daemon {
namespace {

using Json = nlohmann::json;

constexpr int kFormat = 1;
// Of a file that nobody knows: no file is like it.
constexpr int64_t kNeverTheSame = -1;
// Of a line of /proc/PID/maps.
constexpr size_t kRightsField = 1, kPathField = 5;
// The kernel gives files the time of its last tick, which is 100 Hz at the least.
constexpr int64_t kLongestTickNanos = 10'000'000;

// May a file that has this time have got it between the two? They are as far apart as `boot_ns` says: where
// the clock was set in between, it was first the one, and then the other.
bool IsBetween(int64_t unix_ns, const ClockReading& began, const ClockReading& now) {
  const int64_t length = now.boot_ns - began.boot_ns;
  const auto is_within = [unix_ns](int64_t first, int64_t last) {
    return unix_ns >= first - kLongestTickNanos && unix_ns <= last;
  };
  return is_within(began.unix_ns, began.unix_ns + length) || is_within(now.unix_ns - length, now.unix_ns);
}

}  // namespace

ClockReading ClockReading::Now() {
  timespec boot{};
  ::clock_gettime(CLOCK_BOOTTIME, &boot);
  return {UnixNanos(), Nanos(boot)};
}

std::optional<LoadedFiles::State> LoadedFiles::StateOf(const std::string& path, int64_t* changed_ns) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  if (changed_ns != nullptr) *changed_ns = Nanos(info.st_ctim);
  return State{static_cast<uint64_t>(info.st_size), Nanos(info.st_mtim)};
}

void LoadedFiles::Add(pid_t pid, absl::string_view paths, const ClockReading& began,
                      const std::function<bool(const std::string& path)>& own,
                      const std::function<ClockReading()>& clock) {
  const auto add = [&](absl::string_view name) {
    const std::string path(name);
    if (!absl::StartsWith(path, "/") || ToUtf8(path) != path || files_.contains(path) || (own && own(path)))
      return;
    int64_t changed_ns = 0;
    auto state = StateOf(path, &changed_ns);
    if (!state) return;
    // Asked after the file: it may be changed just now.
    if (IsBetween(changed_ns, began, clock())) state->modified_ns = kNeverTheSame;
    files_.emplace(path, *state);
  };
  for (absl::string_view path : absl::StrSplit(paths, '\0', absl::SkipEmpty())) add(path);
  ForEachLineOf(absl::StrCat("/proc/", pid, "/maps"), [&](absl::string_view line) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(' ', kPathField));
    // Programs and libraries; data may change.
    if (fields.size() > kPathField && absl::StrContains(fields[kRightsField], 'x'))
      add(absl::StripLeadingAsciiWhitespace(fields[kPathField]));
    return true;
  });
}

void LoadedFiles::AddBelow(const LoadedFiles& below) {
  for (const auto& [path, state] : below.files_) files_.insert_or_assign(path, state);
}

std::optional<std::string> LoadedFiles::Change(const std::vector<std::string>& command) const {
  if (command != command_) {
    return absl::StrCat("it is started by ", command.empty() ? "nothing" : command.back(), " now");
  }
  for (const auto& [path, state] : files_) {
    const auto now = StateOf(path, nullptr);
    if (!now) return absl::StrCat(path, " is not there any more");
    if (*now != state) return absl::StrCat(path, " has changed");
  }
  return std::nullopt;
}

std::string LoadedFiles::Encode() const {
  Json files = Json::array();
  for (const auto& [path, state] : files_) files.push_back({path, state.bytes, state.modified_ns});
  const Json all = {{"format", kFormat}, {"command", command_}, {"files", std::move(files)}};
  return all.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<LoadedFiles> LoadedFiles::Decode(absl::string_view bytes) {
  const absl::Status wrong =
      absl::DataLossError("what an image has loaded is not written down as it should be");
  const Json all = Json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  if (!all.is_object()) return wrong;
  const auto format = all.find("format");
  const auto command = all.find("command");
  const auto files = all.find("files");
  if (format == all.end() || *format != kFormat || command == all.end() || !command->is_array() ||
      files == all.end() || !files->is_array()) {
    return wrong;
  }
  LoadedFiles decoded;
  for (const Json& part : *command) {
    if (!part.is_string()) return wrong;
    decoded.command_.push_back(part.get<std::string>());
  }
  for (const Json& file : *files) {
    if (!file.is_array() || file.size() != 3 || !file[0].is_string() || !file[1].is_number_unsigned() ||
        !file[2].is_number_integer()) {
      return wrong;
    }
    decoded.files_[file[0].get<std::string>()] = {file[1].get<uint64_t>(), file[2].get<int64_t>()};
  }
  return decoded;
}

}  // namespace rekindle::daemon
