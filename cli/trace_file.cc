#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "base/timeline.h"
#include "cli/timeline.h"

namespace rekindle::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNanosPerMicrosecond = 1000;

Json NameEvent(const char* what, int pid, int tid, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", pid}, {"tid", tid}, {"args", {{"name", name}}}};
}

}  // namespace

std::string ChromeTrace(const std::vector<v1::Timeline>& timelines) {
  int64_t zero = std::numeric_limits<int64_t>::max();
  for (const v1::Timeline& timeline : timelines) {
    for (const v1::Span& span : timeline.spans()) zero = std::min<int64_t>(zero, span.begin_ns());
  }
  Json events = Json::array();
  int last_process = 0;
  for (const v1::Timeline& timeline : timelines) {
    Timeline spans;
    for (const v1::Span& span : timeline.spans()) {
      spans.push_back({span.process(),
                       span.thread(),
                       span.name(),
                       span.begin_ns(),
                       span.duration_ns(),
                       {span.numbers().begin(), span.numbers().end()}});
    }
    MakeSpansNest(&spans);
    // The numbers of processes are the viewer's: the same process may take part in several timelines.
    std::map<std::string, int> processes;
    std::map<std::pair<std::string, std::string>, int> threads;
    for (const Span& span : spans) {
      auto [process, new_process] = processes.try_emplace(span.process, last_process + 1);
      if (new_process) {
        ++last_process;
        events.push_back(NameEvent(
            "process_name", process->second, 0,
            timelines.size() == 1 ? span.process : absl::StrCat(span.process, " for PID ", timeline.pid())));
      }
      auto [thread, new_thread] =
          threads.try_emplace({span.process, span.thread}, static_cast<int>(threads.size()) + 1);
      if (new_thread) {
        events.push_back(NameEvent("thread_name", process->second, thread->second, span.thread));
      }
      events.push_back({{"ph", "X"},
                        {"name", span.name},
                        {"cat", span.process},
                        {"pid", process->second},
                        {"tid", thread->second},
                        {"ts", static_cast<double>(span.begin_ns - zero) / kNanosPerMicrosecond},
                        {"dur", static_cast<double>(span.duration_ns) / kNanosPerMicrosecond},
                        {"args", span.numbers}});
    }
  }
  const Json trace = {{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}};
  return trace.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<TraceFile> TraceFile::Create(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("writing the timeline to ", path, ": it is no regular file; name another"));
  }
  std::string temporary = absl::StrCat(path, ".tmp-", ::getpid());
  absl::Status status = WriteFileAtomically(temporary, "", 0644);
  if (!status.ok()) {
    return Annotate(status, absl::StrCat("nothing was started, for its timeline can't be written to ", path,
                                         " (name a file in a folder that you may write to)"));
  }
  return TraceFile(path, std::move(temporary));
}

TraceFile::TraceFile(TraceFile&& other) noexcept
    : path_(other.path_), temporary_(std::exchange(other.temporary_, "")) {}

TraceFile::~TraceFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

absl::Status TraceFile::Write(const std::string& content) {
  RK_RETURN_IF_ERROR(WriteFileAtomically(temporary_, content, 0644));
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return ErrnoStatus(errno, path_);
  temporary_.clear();
  return absl::OkStatus();
}

}  // namespace rekindle::cli
