#include "criu/installation.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "base/file.h"
#include "base/machine.h"
#include "base/status.h"
#include "base/subprocess.h"

namespace rekindle::criu {
namespace {

constexpr char kPrivatePrefix[] = "/opt/rekindle/criu";
constexpr absl::string_view kCure =
    "; install CRIU 4.2 or newer, use Rekindle's bundle, which brings one, or run scripts/setup.sh of its "
    "sources (on Debian, as root: a private copy under /opt/rekindle/criu), or name one in REKINDLE_CRIU";

// A program that may be CRIU.
struct Candidate {
  std::vector<std::string> command;
  std::string program;
  std::string origin;
};

bool IsProgram(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

bool IsDirectory(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

// The dynamic loader that came with a private prefix; empty: none did.
absl::StatusOr<std::string> FindLoader(const std::string& prefix) {
  for (absl::string_view folder : {"lib64", "usr/lib64", "lib", "usr/lib"}) {
    std::string directory = absl::StrCat(prefix, "/", folder);
    if (!IsDirectory(directory)) continue;
    RK_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(directory));
    for (const std::string& name : names) {
      if (absl::StartsWith(name, "ld-linux") && absl::StrContains(name, ".so.")) {
        return absl::StrCat(directory, "/", name);
      }
    }
  }
  return std::string();
}

// The folders of a private prefix that hold shared libraries.
absl::StatusOr<std::string> LibraryPath(const std::string& prefix) {
  std::vector<std::string> folders;
  for (absl::string_view base : {"usr/lib", "lib", "usr/lib64", "lib64"}) {
    std::string directory = absl::StrCat(prefix, "/", base);
    if (!IsDirectory(directory)) continue;
    RK_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(directory));
    for (const std::string& name : names) {
      std::string folder = absl::StrCat(directory, "/", name);
      if (absl::EndsWith(name, "-linux-gnu") && IsDirectory(folder)) folders.push_back(folder);
    }
    folders.push_back(directory);
  }
  return absl::StrJoin(folders, ":");
}

// Nothing: there is none. An error: what there is can't be looked at.
absl::StatusOr<std::optional<Candidate>> CandidateInPrefix(const std::string& prefix, std::string origin) {
  for (absl::string_view folder : {"usr/sbin", "sbin", "usr/bin", "bin"}) {
    std::string program = absl::StrCat(prefix, "/", folder, "/criu");
    if (!IsProgram(program)) continue;
    Candidate candidate;
    candidate.program = program;
    candidate.origin = std::move(origin);
    RK_ASSIGN_OR_RETURN(std::string loader, FindLoader(prefix));
    if (!loader.empty()) {
      RK_ASSIGN_OR_RETURN(std::string libraries, LibraryPath(prefix));
      candidate.command = {std::move(loader), "--library-path", std::move(libraries), program};
    } else {
      candidate.command = {program};
    }
    return std::optional<Candidate>(std::move(candidate));
  }
  return std::optional<Candidate>();
}

std::string OwnDirectory() {
  char buffer[4096];
  ssize_t n = ::readlink("/proc/self/exe", buffer, sizeof buffer);
  if (n <= 0 || static_cast<size_t>(n) == sizeof buffer) return "";
  std::string path(buffer, static_cast<size_t>(n));
  return path.substr(0, path.rfind('/'));
}

absl::StatusOr<std::vector<Candidate>> Candidates() {
  std::vector<std::pair<std::string, std::string>> prefixes;  // and origins
  if (std::string own = OwnDirectory(); !own.empty()) {
    prefixes.emplace_back(absl::StrCat(own, "/../lib/rekindle/criu"), "bundle");
    prefixes.emplace_back(absl::StrCat(own, "/../criu"), "bundle");
  }
  prefixes.emplace_back(kPrivatePrefix, absl::StrCat("private prefix ", kPrivatePrefix));
  std::vector<Candidate> candidates;
  for (const auto& [prefix, origin] : prefixes) {
    RK_ASSIGN_OR_RETURN(std::optional<Candidate> candidate, CandidateInPrefix(prefix, origin));
    if (candidate.has_value()) candidates.push_back(*std::move(candidate));
  }
  const char* path = ::getenv("PATH");
  std::vector<std::string> folders = absl::StrSplit(path != nullptr ? path : "", ':', absl::SkipEmpty());
  folders.insert(folders.end(), {"/usr/sbin", "/usr/local/sbin"});
  for (const std::string& folder : folders) {
    std::string program = absl::StrCat(folder, "/criu");
    if (IsProgram(program)) candidates.push_back({{program}, program, "system"});
  }
  return candidates;
}

absl::StatusOr<Version> ParseVersion(absl::string_view output, absl::string_view program) {
  constexpr absl::string_view kLabel = "Version: ";
  for (absl::string_view line : absl::StrSplit(output, '\n')) {
    if (!absl::StartsWith(line, kLabel)) continue;
    std::vector<absl::string_view> parts = absl::StrSplit(line.substr(kLabel.size()), '.');
    Version version;
    // A trailing part may carry a suffix ("4.3-rc1").
    auto number = [](absl::string_view text, int* out) {
      size_t digits = 0;
      while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
      return absl::SimpleAtoi(text.substr(0, digits), out);
    };
    if (parts.size() >= 2 && number(parts[0], &version.major) && number(parts[1], &version.minor) &&
        (parts.size() < 3 || number(parts[2], &version.patch))) {
      return version;
    }
  }
  return absl::UnavailableError(absl::StrCat(
      "asking ", program, " for its version: no version in its answer \"", output.substr(0, 200), "\""));
}

class VersionCache {
 public:
  absl::StatusOr<Version> Get(const Candidate& candidate) ABSL_LOCKS_EXCLUDED(mutex_) {
    struct stat info;
    if (::stat(candidate.program.c_str(), &info) != 0) return ErrnoStatus(errno, candidate.program);
    std::pair<std::string, int64_t> key = {absl::StrJoin(candidate.command, "\n"),
                                           info.st_mtim.tv_sec * int64_t{1000000000} + info.st_mtim.tv_nsec};
    absl::MutexLock lock(&mutex_);
    if (auto known = versions_.find(key); known != versions_.end()) return known->second;
    std::vector<std::string> argv = candidate.command;
    argv.push_back("--version");
    RK_ASSIGN_OR_RETURN(CommandResult result, RunCommand(argv, absl::Seconds(20)));
    if (!result.exit.ok()) {
      return absl::UnavailableError(absl::StrCat("asking ", candidate.program, " for its version: ",
                                                 result.exit.ToString(), ": ", result.output.substr(0, 300)));
    }
    RK_ASSIGN_OR_RETURN(Version version, ParseVersion(result.output, candidate.program));
    versions_[key] = version;
    return version;
  }

 private:
  absl::Mutex mutex_;
  std::map<std::pair<std::string, int64_t>, Version> versions_ ABSL_GUARDED_BY(mutex_);
};

VersionCache& Versions() {
  static VersionCache* cache = new VersionCache;
  return *cache;
}

// $REKINDLE_CRIU is a person's choice: when it does not work that is said, and nothing else is tried.
absl::StatusOr<Installation> FromEnvironment(const std::string& choice) {
  std::string what = absl::StrCat("REKINDLE_CRIU=", choice);
  std::optional<Candidate> candidate;
  if (IsProgram(choice)) {
    candidate = Candidate{{choice}, choice, "REKINDLE_CRIU"};
  } else {
    RK_ASSIGN_OR_RETURN(candidate, CandidateInPrefix(choice, "REKINDLE_CRIU"));
  }
  if (!candidate.has_value()) {
    return absl::UnimplementedError(
        absl::StrCat(what, " is neither a program nor a folder with usr/sbin/criu in it", kCure));
  }
  absl::StatusOr<Version> version = Versions().Get(*candidate);
  if (!version.ok()) return Annotate(version.status(), what);
  if (*version < kOldestSupported) {
    return absl::UnimplementedError(absl::StrCat(what, " is CRIU ", version->ToString(), "; Rekindle needs ",
                                                 kOldestSupported.ToString(), " or newer", kCure));
  }
  return Installation{std::move(candidate->command), *version, std::move(candidate->origin)};
}

absl::StatusOr<Installation> FindUsable() {
  if (const char* choice = ::getenv("REKINDLE_CRIU"); choice != nullptr && *choice != '\0') {
    return FromEnvironment(choice);
  }
  std::vector<std::string> too_old, broken;
  RK_ASSIGN_OR_RETURN(std::vector<Candidate> candidates, Candidates());
  for (Candidate& candidate : candidates) {
    absl::StatusOr<Version> version = Versions().Get(candidate);
    if (absl::IsResourceExhausted(version.status())) {
      // That it could not be asked says nothing of it.
      return Annotate(version.status(), absl::StrCat("asking ", candidate.program, " for its version"));
    }
    if (!version.ok()) {
      broken.push_back(std::string(version.status().message()));
    } else if (*version < kOldestSupported) {
      too_old.push_back(absl::StrCat(candidate.program, " is ", version->ToString()));
    } else {
      return Installation{std::move(candidate.command), *version, std::move(candidate.origin)};
    }
  }
  std::string needed = absl::StrCat("CRIU ", kOldestSupported.ToString(), " or newer is needed");
  if (!too_old.empty()) {
    return absl::UnimplementedError(
        absl::StrCat(needed, " and only older ones are here (", absl::StrJoin(too_old, ", "), ")", kCure));
  }
  if (!broken.empty()) {
    return absl::UnimplementedError(
        absl::StrCat(needed, " and what is here does not work (", absl::StrJoin(broken, "; "), ")", kCure));
  }
  return absl::UnimplementedError(absl::StrCat(needed, " and none was found", kCure));
}

}  // namespace

std::string Version::ToString() const {
  return patch == 0 ? absl::StrCat(major, ".", minor) : absl::StrCat(major, ".", minor, ".", patch);
}

absl::StatusOr<Installation> FindCriu() {
  absl::StatusOr<Installation> found = FindUsable();
  if (!found.ok()) return LackOfMachine(found.status());
  return found;
}

}  // namespace rekindle::criu
