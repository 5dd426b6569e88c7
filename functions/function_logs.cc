#include "functions/function_logs.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "functions/function_spec.h"

namespace rekindle::functions {
namespace {

constexpr size_t kLongestInstanceName = 128;

absl::Status CheckInstanceName(const std::string& instance) {
  const bool good = !instance.empty() && instance[0] != '.' && instance.size() <= kLongestInstanceName &&
                    std::all_of(instance.begin(), instance.end(), [](char c) {
                      return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
                    });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("'", instance, "' is no name for an instance's log"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<FunctionLogs>> FunctionLogs::Open(const std::string& logs) {
  const std::string directory = logs + "/functions";
  RK_RETURN_IF_ERROR(MakeDirectories(directory, kThroughOnly));
  if (::chmod(directory.c_str(), kThroughOnly) != 0)
    return ErrnoStatus(errno, absl::StrCat("opening ", directory));
  return std::unique_ptr<FunctionLogs>(new FunctionLogs(directory));
}

absl::StatusOr<std::string> FunctionLogs::MakeFolder(const std::string& function) const {
  RK_RETURN_IF_ERROR(CheckFunctionName(function));
  std::string folder = FolderOf(function);
  RK_RETURN_IF_ERROR(MakeDirectories(folder, kThroughOnly));
  if (::chmod(folder.c_str(), kThroughOnly) != 0) return ErrnoStatus(errno, absl::StrCat("opening ", folder));
  return folder;
}

absl::StatusOr<std::shared_ptr<LogStream>> FunctionLogs::OpenStream(const std::string& function,
                                                                    const std::string& instance,
                                                                    const Owner& owner) {
  RK_RETURN_IF_ERROR(CheckFunctionName(function));
  RK_RETURN_IF_ERROR(CheckInstanceName(instance));
  const std::shared_ptr<OfFunction> logs = LogsOf(function);
  absl::MutexLock lock(&logs->mutex);
  absl::StatusOr<std::shared_ptr<LogStream>> stream = absl::NotFoundError("");
  if (logs->folder_made) stream = LogStream::Open(absl::StrCat(FolderOf(function), "/", instance), owner);
  if (!stream.ok()) {
    RK_ASSIGN_OR_RETURN(const std::string folder, MakeFolder(function));
    stream = LogStream::Open(absl::StrCat(folder, "/", instance), owner);
    logs->folder_made = stream.ok();
  }
  RK_RETURN_IF_ERROR(stream.status());
  logs->living[instance] = *stream;
  logs->opened = true;
  return stream;
}

std::shared_ptr<FunctionLogs::OfFunction> FunctionLogs::LogsOf(const std::string& function) {
  absl::MutexLock lock(&mutex_);
  std::shared_ptr<OfFunction>& logs = functions_[function];
  if (logs == nullptr) logs = std::make_shared<OfFunction>();
  return logs;
}

void FunctionLogs::RemoveOldStreams(const std::string& folder, OfFunction& logs) {
  auto names = ListDirectory(folder);
  if (!names.ok()) return;
  std::vector<std::pair<int64_t, std::string>> ended;
  for (const std::string& name : *names) {
    absl::string_view instance = name;
    struct stat info;
    if (!absl::ConsumeSuffix(&instance, ".log") || logs.living.contains(std::string(instance)) ||
        ::lstat(absl::StrCat(folder, "/", name).c_str(), &info) != 0) {
      continue;
    }
    ended.emplace_back(int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec, instance);
  }
  if (ended.size() <= kMostEnded) return;
  std::sort(ended.begin(), ended.end());
  ended.resize(ended.size() - kMostEnded);
  for (const auto& [time, instance] : ended) {
    for (const char* ending : {".log", ".times"}) {
      const std::string path = absl::StrCat(folder, "/", instance, ending);
      if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
        Log(LogLevel::kWarning, ErrnoStatus(errno, absl::StrCat("removing the old log ", path)).message());
      }
    }
  }
}

void FunctionLogs::Tidy() {
  std::map<std::string, std::shared_ptr<OfFunction>> functions;
  {
    absl::MutexLock lock(&mutex_);
    functions = functions_;
  }
  for (const auto& [function, logs] : functions) {
    std::vector<std::shared_ptr<LogStream>> streams;
    {
      absl::MutexLock lock(&logs->mutex);
      std::erase_if(logs->living, [](const auto& entry) { return entry.second.expired(); });
      if (std::exchange(logs->opened, false)) RemoveOldStreams(FolderOf(function), *logs);
      for (const auto& [instance, stream] : logs->living) streams.push_back(stream.lock());
      if (!logs->folder_made && logs->living.empty()) Forget(function, logs);
    }
    for (const std::shared_ptr<LogStream>& stream : streams) {
      if (stream) stream->Trim();
    }
  }
}

size_t FunctionLogs::known() const {
  absl::MutexLock lock(&mutex_);
  return functions_.size();
}

absl::Status FunctionLogs::Read(const std::string& function, const LogReadOptions& options,
                                const LogLineSink& sink) const {
  std::string folder = FolderOf(function);
  if (options.follow) {
    // It may not have run yet.
    RK_ASSIGN_OR_RETURN(folder, MakeFolder(function));
  } else {
    RK_RETURN_IF_ERROR(CheckFunctionName(function));
  }
  return ReadLogs(folder, options, sink);
}

absl::Status FunctionLogs::Remove(const std::string& function) {
  RK_RETURN_IF_ERROR(CheckFunctionName(function));
  const std::shared_ptr<OfFunction> logs = LogsOf(function);
  absl::MutexLock lock(&logs->mutex);
  logs->folder_made = false;
  absl::Status removed = RemoveTree(FolderOf(function));
  if (removed.ok() && logs->living.empty()) Forget(function, logs);
  return removed;
}

void FunctionLogs::Forget(const std::string& function, const std::shared_ptr<OfFunction>& logs) {
  absl::MutexLock all(&mutex_);
  // The caller's and ours: nobody else waits for its lock.
  if (logs.use_count() == 2) functions_.erase(function);
}

}  // namespace rekindle::functions
