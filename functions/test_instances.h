// Instances of functions for tests: threads of the test that speak the Runtime API over its socket, as a
// runtime does, and do with each invocation what the test says.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "functions/http_client_for_tests.h"
#include "functions/instance_process.h"

namespace rekindle::functions {

// What an instance has in memory, unless the test says something else.
inline constexpr uint64_t kTestInstanceBytes = uint64_t{10} << 20;

// What a program sees of the instance that it runs in. Belongs to the instance's thread, but for Kill().
class TestRuntime {
 public:
  explicit TestRuntime(StartOrder order)
      : order_(std::move(order)), address_(TestAddress::kUnix), http_(address_) {}

  const StartOrder& order() const { return order_; }
  const std::string& payload() const { return payload_; }

  // Asks for an invocation and waits for one; false: the Runtime API has gone.
  bool Next();
  // What the Runtime API said: 202 if it took it; 0: it has gone.
  int Answer(absl::string_view body) { return Post("/response", body); }
  int Fail(absl::string_view error_json) { return Post("/error", error_json); }
  int FailInit(absl::string_view error_json) {
    return http_.Post("/2018-06-01/runtime/init/error", error_json).status;
  }
  void WaitForKill() ABSL_LOCKS_EXCLUDED(mutex_);
  // What it needs at most for each of its calls.
  void NeedForACall(uint64_t bytes) { peak_bytes_ = bytes; }
  uint64_t peak_bytes() const { return peak_bytes_; }
  // As the end of a process does.
  void HangUp() { http_.HangUp(); }

  bool killed() const ABSL_LOCKS_EXCLUDED(mutex_);
  void Kill() ABSL_LOCKS_EXCLUDED(mutex_);
  UniqueFd TakeListener() { return address_.TakeListener(); }

 private:
  int Post(const char* what, absl::string_view body) {
    return http_.Post("/2018-06-01/runtime/invocation/" + request_id_ + what, body).status;
  }

  const StartOrder order_;
  TestAddress address_;
  HttpClient http_;  // connected from the beginning: the listener may be gone before the thread runs
  std::string request_id_, payload_;
  std::atomic<uint64_t> peak_bytes_{0};
  mutable absl::Mutex mutex_;
  bool killed_ ABSL_GUARDED_BY(mutex_) = false;
};

// Runs an instance to its end.
using TestProgram = std::function<InstanceEnd(TestRuntime&)>;

InstanceEnd Exits(int code);
InstanceEnd DiesOf(int signal);
// Answers with the payload that it was given, until the Runtime API goes.
InstanceEnd Echo(TestRuntime& runtime);

// Thread-safe. Outlives the Scheduler; its destructor waits for the instances.
class TestStarter : public InstanceStarter {
 public:
  struct Making {
    enum class What { kTemplate, kDropTemplate, kImage, kDropImage } what;
    std::string function, dependency;
    friend bool operator==(const Making&, const Making&) = default;
  };

  ~TestStarter() override;

  // Of the instances that are started from now on.
  void Become(const std::string& function, TestProgram program) ABSL_LOCKS_EXCLUDED(mutex_);
  // What starts at this level say from now on instead of starting, until they are told OkStatus.
  void Refuse(StartLevel level, absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);
  void RefuseToCapture(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);
  // No template of this function can be made.
  void RefuseTemplates(const std::string& function) ABSL_LOCKS_EXCLUDED(mutex_);
  // Taking an image of this function lasts until the starter is told to stop capturing.
  void HangInCapture(const std::string& function) ABSL_LOCKS_EXCLUDED(mutex_);
  // What templates that are made from now on have in memory.
  void MakeTemplatesOf(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // What instances that are started from now on have in memory once they have answered.
  void GrowTo(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts of this function wait until they are let.
  void HangInStart(const std::string& function) ABSL_LOCKS_EXCLUDED(mutex_);
  void LetStart(const std::string& function) ABSL_LOCKS_EXCLUDED(mutex_);
  // The next starts wait until it is called with false.
  void HoldStarts(bool hold) ABSL_LOCKS_EXCLUDED(mutex_);

  // Called by whoever asks from now on what an instance has in memory; null: nothing.
  void MeasureBy(std::function<void()> measuring) ABSL_LOCKS_EXCLUDED(mutex_);

  absl::StatusOr<StartedInstance> Start(const StartOrder& order) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<uint64_t> MakeTemplate(const std::string& function, uint64_t revision,
                                        const std::string& dependency_image) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void DropTemplate(const std::string& function, uint64_t revision,
                    const std::string& dependency_image) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<uint64_t> CaptureImage(const std::string& function, uint64_t revision) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void DropImage(const std::string& function, uint64_t revision) override ABSL_LOCKS_EXCLUDED(mutex_);
  void StopMaking() override ABSL_LOCKS_EXCLUDED(mutex_);

  // Of all starts so far, in their order.
  std::vector<StartOrder> started() const ABSL_LOCKS_EXCLUDED(mutex_);
  // What the logs of instances say of starts that came to nothing.
  std::vector<StartFailure> failed() const ABSL_LOCKS_EXCLUDED(mutex_);
  size_t living() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<Making> made() const ABSL_LOCKS_EXCLUDED(mutex_);
  // They return false when it has not come true within a minute.
  bool WaitForStarts(size_t count) ABSL_LOCKS_EXCLUDED(mutex_);
  bool WaitForLiving(size_t count) ABSL_LOCKS_EXCLUDED(mutex_);
  bool WaitForMade(const Making& making) ABSL_LOCKS_EXCLUDED(mutex_);
  bool WaitForGrown(int count) ABSL_LOCKS_EXCLUDED(mutex_);
  // A process that nobody told to end: as from outside.
  void KillInstance(const std::string& instance) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Note(Making::What what, const std::string& function, const std::string& dependency)
      ABSL_LOCKS_EXCLUDED(mutex_);

  mutable absl::Mutex mutex_;
  std::map<std::string, TestProgram> programs_ ABSL_GUARDED_BY(mutex_);
  std::map<StartLevel, absl::Status> refused_ ABSL_GUARDED_BY(mutex_);
  absl::Status no_capture_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> without_template_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> hanging_ ABSL_GUARDED_BY(mutex_), not_starting_ ABSL_GUARDED_BY(mutex_);
  bool stop_capturing_ ABSL_GUARDED_BY(mutex_) = false;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t template_bytes_ ABSL_GUARDED_BY(mutex_) = kTestInstanceBytes, grown_bytes_ ABSL_GUARDED_BY(
                                                                             mutex_) = kTestInstanceBytes;
  int grown_ ABSL_GUARDED_BY(mutex_) = 0;  // instances
  std::function<void()> measuring_ ABSL_GUARDED_BY(mutex_);
  std::vector<StartOrder> started_ ABSL_GUARDED_BY(mutex_);
  std::vector<StartFailure> failed_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<TestRuntime>> living_ ABSL_GUARDED_BY(mutex_);
  std::vector<Making> made_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::functions
