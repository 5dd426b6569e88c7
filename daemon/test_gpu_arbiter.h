// An arbiter over a machine of a test's own making, and what its tests have in common.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "base/test_eventually.h"
#include "daemon/gpu_arbiter.h"
#include "daemon/test_gpu_machine.h"

namespace rekindle::daemon {

inline constexpr uint64_t kGiB = 1ull << 30;

// Where a call stands still until the test lets it go on.
class Gate {
 public:
  void Pass() {
    absl::MutexLock lock(&mutex_);
    reached_ = true;
    mutex_.Await(absl::Condition(&open_));
  }
  void AwaitReached() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&reached_));
  }
  void Open() {
    absl::MutexLock lock(&mutex_);
    open_ = true;
  }

 private:
  absl::Mutex mutex_;
  bool reached_ ABSL_GUARDED_BY(mutex_) = false, open_ ABSL_GUARDED_BY(mutex_) = false;
};

class GpuArbiterTest : public ::testing::Test {
 protected:
  using Call = TestMachine::Call;

  void Make(DeviceBytes totals, uint64_t budget_gib = 1000, absl::Duration reread = absl::Hours(1)) {
    for (auto& [uuid, gib] : totals) gib *= kGiB;
    machine_.emplace(totals, budget_gib * kGiB);
    GpuArbiterOptions options;
    options.host_budget = budget_gib * kGiB;
    options.device_totals = std::move(totals);
    options.reread_interval = reread;
    options.cancel_interval = absl::Hours(1);
    arbiter_.emplace(&*machine_, std::move(options));
  }
  void TearDown() override {
    if (!machine_) return;
    EXPECT_THAT(machine_->wrongs(), ::testing::IsEmpty());
    for (const GpuJobId& job : machine_->Jobs()) EXPECT_TRUE(machine_->IsIntact(job)) << job.pid;
  }

  static GpuJobId Id(pid_t pid) { return {pid, 1000 + static_cast<uint64_t>(pid)}; }
  void Add(pid_t pid, DeviceBytes gib, GpuJobState state) {
    for (auto& [uuid, bytes] : gib) bytes *= kGiB;
    ASSERT_TRUE(machine_->Start(Id(pid), gib, state == GpuJobState::kResident));
    arbiter_->Add(Id(pid), gib, state);
  }
  void AddResident(pid_t pid, DeviceBytes gib) { Add(pid, std::move(gib), GpuJobState::kResident); }
  void AddParked(pid_t pid, DeviceBytes gib) { Add(pid, std::move(gib), GpuJobState::kParked); }

  absl::Status Lease(pid_t pid, LeaseOptions options = {}) { return arbiter_->Lease(pid, options).status(); }
  static LeaseOptions Within(absl::Duration timeout) {
    LeaseOptions options;
    options.timeout = timeout;
    return options;
  }
  absl::Status LeaseAtOnce(pid_t pid) { return Lease(pid, Within(absl::ZeroDuration())); }
  GpuJobSnapshot Look(pid_t pid) {
    for (GpuJobSnapshot& job : arbiter_->Snapshot()) {
      if (job.id.pid == pid) return std::move(job);
    }
    ADD_FAILURE() << "job " << pid << " is unknown";
    return {};
  }

  // A lease that is asked for on a thread of its own.
  class Asked {
   public:
    Asked(GpuArbiterTest* test, pid_t pid, LeaseOptions options = {})
        : test_(test), thread_([this, pid, options] { result_ = test_->Lease(pid, options); }) {}
    ~Asked() {
      if (!thread_.joinable()) return;
      test_->arbiter_->Stop();  // where the test has failed
      thread_.join();
    }
    absl::Status Result() {
      thread_.join();
      return result_;
    }

   private:
    GpuArbiterTest* const test_;
    absl::Status result_;
    std::thread thread_;
  };
  // Until so many requests in all have had to wait, and do.
  void AwaitWaits(uint64_t waits) {
    ASSERT_TRUE(Eventually([&] { return arbiter_->counters().waits >= waits; }));
  }
  void FailNext(Call call, pid_t pid, absl::Status error, int times = 1) {
    machine_->Interfere([=, left = std::make_shared<std::atomic<int>>(times)](Call c, const GpuJobId& id) {
      return c == call && (pid == 0 || id.pid == pid) && (*left)-- > 0 ? error : absl::OkStatus();
    });
  }
  void StopAt(Call call, pid_t pid, Gate* gate, absl::Status then = absl::OkStatus()) {
    machine_->Interfere([=](Call c, const GpuJobId& id) {
      if (c != call || id.pid != pid) return absl::OkStatus();
      gate->Pass();
      return then;
    });
  }

  std::optional<TestMachine> machine_;
  std::optional<GpuArbiter> arbiter_;
};

}  // namespace rekindle::daemon
