// What the tests of criu/ that run a real CRIU share.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/file.h"
#include "base/subprocess.h"
#include "criu/capture_server.h"
#include "criu/command_line.h"

namespace rekindle::criu {

// A running test_job with its shared page. The job is killed and reaped at the end, restored or not.
class TestJob {
 public:
  explicit TestJob(uint32_t children = 0);
  TestJob(const TestJob&) = delete;
  TestJob& operator=(const TestJob&) = delete;
  ~TestJob();

  pid_t pid() const { return pid_; }
  uint32_t counter() const { return words_[0].load(); }
  // Waits until the counter has moved twice from what it is now: one round began after the call. False: it
  // did not within 20 s.
  bool GoesOn();
  void Kill();                 // SIGKILL and reap
  void Exit(uint32_t status);  // tells it to end by itself
  // Waits for our child `pid`; the exit status, or 1000 + the signal.
  int Reap();
  const std::string& folder() const { return folder_.path(); }

 private:
  TemporaryDirectory folder_;
  std::atomic<uint32_t>* words_ = nullptr;
  pid_t pid_ = -1;
};

// Keeps every image file in memory. Thread-safe.
class MemoryConsumer : public ImageFileConsumer {
 public:
  absl::Status Drain(const std::string& file_name, UniqueFd pipe) override;
  std::map<std::string, std::string> TakeFiles();

 private:
  absl::Mutex mutex_;
  std::map<std::string, std::string> files_ ABSL_GUARDED_BY(mutex_);
};

struct StreamedDump {
  ExitState exit;
  absl::StatusOr<std::vector<std::string>> served = absl::UnknownError("not served");
  std::string log;
};

// Runs `criu dump --stream` of `pid` with `consumer` as the streamer; `folder` holds socket and log.
StreamedDump DumpStreamed(DumpOptions options, const std::string& folder, ImageFileConsumer* consumer);

// The processes of /proc whose parent is this process.
std::set<pid_t> OwnChildren();

bool ProcessExists(pid_t pid);

}  // namespace rekindle::criu
