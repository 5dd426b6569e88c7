// A Scheduler over instances of the test's own, and its callers.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "functions/request_id.h"
#include "functions/scheduler.h"
#include "functions/test_instances.h"

namespace rekindle::functions {

// Lets through as many as it has been told to.
class Gate {
 public:
  // False: it has waited for a minute.
  bool Pass() {
    absl::MutexLock lock(&mutex_);
    ++waiting_;
    auto may = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return open_ > 0; };
    const bool passed = mutex_.AwaitWithTimeout(absl::Condition(&may), absl::Minutes(1));
    --waiting_;
    if (passed) --open_;
    return passed;
  }
  void Open(int count) {
    absl::MutexLock lock(&mutex_);
    open_ += count;
  }
  bool WaitForWaiting(int count) {
    absl::MutexLock lock(&mutex_);
    auto come = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return waiting_ == count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&come), absl::Minutes(1));
  }

 private:
  absl::Mutex mutex_;
  int open_ ABSL_GUARDED_BY(mutex_) = 0;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
};

using Told = std::future<absl::StatusOr<CallResult>>;

class SchedulerTest : public ::testing::Test {
 protected:
  SchedulerTest() { options_.keep_alive.memory_bytes = uint64_t{64} << 30; }

  Scheduler& scheduler() {
    if (!scheduler_) scheduler_.emplace(options_, starter_, threads_);
    return *scheduler_;
  }
  void StopScheduler() { scheduler_.reset(); }

  static ScheduledFunction Function(const std::string& name) {
    ScheduledFunction function;
    function.name = name;
    function.revision = 1;
    function.memory_bytes = 128 << 20;
    function.timeout = absl::Minutes(10);
    return function;
  }

  static Call CallOf(const std::string& function, const std::string& payload) {
    Call call;
    call.function = function;
    call.request_id = NewRequestId();
    call.payload = payload;
    return call;
  }
  Told Invoke(const std::string& function, const std::string& payload = "{}") {
    return Invoke(CallOf(function, payload));
  }
  Told InvokeEvent(const std::string& function, const std::string& payload) {
    auto told = std::make_shared<std::promise<absl::StatusOr<CallResult>>>();
    scheduler().InvokeEvent(
        std::make_shared<const Call>(CallOf(function, payload)),
        [told](absl::StatusOr<CallResult> result) { told->set_value(std::move(result)); });
    return told->get_future();
  }
  Told Invoke(Call call) {
    auto told = std::make_shared<std::promise<absl::StatusOr<CallResult>>>();
    scheduler().Invoke(std::move(call),
                       [told](absl::StatusOr<CallResult> result) { told->set_value(std::move(result)); });
    return told->get_future();
  }
  // Nobody is told after a minute: DeadlineExceeded.
  static absl::StatusOr<CallResult> ResultOf(Told& told) {
    if (told.wait_for(std::chrono::minutes(1)) == std::future_status::ready) return told.get();
    return absl::DeadlineExceededError("nothing was said within a minute");
  }
  // As "ok PAYLOAD", "function error PAYLOAD", or the status's text.
  static std::string TextOf(Told told) {
    absl::StatusOr<CallResult> result = ResultOf(told);
    if (!result.ok()) return result.status().ToString();
    return (result->function_error.empty() ? "ok " : "function error ") + result->payload;
  }
  static bool Pending(const Told& told) {
    return told.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  }

  FunctionNumbers Numbers(const std::string& function) {
    absl::StatusOr<FunctionNumbers> numbers = scheduler().Numbers(function);
    EXPECT_TRUE(numbers.ok()) << numbers.status();
    return numbers.ok() ? *numbers : FunctionNumbers();
  }

  // Until the end of a process has been told, a call may still be given to it.
  void WaitUntilGone(const std::string& function) {
    for (FunctionNumbers now = Numbers(function); now.idle + now.busy > 0; now = Numbers(function)) {
      std::this_thread::yield();
    }
  }

  void WaitUntilIdle(const std::string& function, uint32_t count) {
    while (Numbers(function).idle < count) std::this_thread::yield();
  }

  TestStarter starter_;  // outlives the others
  HttpThreads threads_;
  SchedulerOptions options_;
  std::optional<Scheduler> scheduler_;
};

}  // namespace rekindle::functions
