// All of it at once, at random, with the rules checked throughout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "daemon/test_gpu_arbiter.h"

namespace rekindle::daemon {
namespace {

// 50 jobs, some on two GPUs, share 4 GPUs that hold a third of them and a host budget that does not hold the
// rest; everything that may go wrong does.
TEST_F(GpuArbiterTest, TenThousandLeasesAtRandomWithFailuresDeathsAndTimeOuts) {
  constexpr int kJobs = 50, kThreads = 16, kLeases = 10000;
  const std::vector<std::string> gpus = {"A", "B", "C", "D"};
  std::mt19937 random(4711);
  struct Server {
    absl::Mutex mutex;
    DeviceBytes bytes;  // written before the threads start
    GpuJobId id ABSL_GUARDED_BY(mutex);
    bool dead ABSL_GUARDED_BY(mutex) = false;
  };
  std::vector<Server> servers(kJobs);
  uint64_t all = 0;
  DeviceBytes totals;
  for (int i = 0; i < kJobs; ++i) {
    const size_t gpu = static_cast<size_t>(i) % gpus.size();
    servers[i].bytes[gpus[gpu]] = 1 + random() % 4;
    if (i % 6 == 0) servers[i].bytes[gpus[(gpu + 1 + random() % 3) % gpus.size()]] = 1 + random() % 4;
    all += TestMachine::Sum(servers[i].bytes);
  }
  for (const std::string& gpu : gpus) totals[gpu] = all / 12;
  // Not all fit into the GPUs and the budget: some start later.
  const uint64_t budget = all / 2 + 4;
  machine_.emplace(totals, budget);
  GpuArbiterOptions options;
  options.host_budget = budget;
  options.device_totals = totals;
  options.reread_interval = absl::Milliseconds(3);
  options.cancel_interval = absl::Milliseconds(1);
  arbiter_.emplace(&*machine_, options);

  std::atomic<uint64_t> ticks{1};
  std::atomic<int> leases{0}, deaths{0}, starts{0}, on_devices{0}, injected{0}, cancelled{0};
  auto start = [&](int i, bool resident) {
    absl::MutexLock lock(&servers[i].mutex);
    if (machine_->IsAlive(servers[i].id)) return false;  // another thread has seen it dead, too
    const GpuJobId id{100 + i, ticks++};
    if (!machine_->Start(id, servers[i].bytes, resident)) {
      servers[i].dead = true;
      return false;
    }
    servers[i].id = id;
    servers[i].dead = false;
    arbiter_->Add(id, servers[i].bytes, resident ? GpuJobState::kResident : GpuJobState::kParked);
    return true;
  };
  for (int i = 0; i < kJobs; ++i) {
    if (!start(i, true) && machine_->host_used() + TestMachine::Sum(servers[i].bytes) <= budget)
      start(i, false);
  }
  ASSERT_GE(machine_->Jobs().size(), 35u);
  ASSERT_GE(machine_->host_used(), budget / 2);

  std::atomic<uint32_t> dice{1};
  machine_->Interfere([&](Call call, const GpuJobId&) {
    // The same mixture in every run, whoever gets which.
    uint32_t value = dice++ * 2654435761u;
    value ^= value >> 15;
    for (uint32_t i = 0; i < value % 8; ++i) std::this_thread::yield();
    if (value % 29 != 0) return absl::OkStatus();
    ++injected;
    if (call == Call::kFreeMemory) return absl::UnavailableError("injected");
    switch (value / 29 % 3) {
      case 0:
        return absl::AbortedError("injected");
      case 1:
        return absl::ResourceExhaustedError("injected");
      default:
        return absl::InternalError("injected");
    }
  });

  auto work = [&](uint32_t seed) {
    std::mt19937 own(seed);
    auto chance = [&](uint32_t per_mille) { return own() % 1000 < per_mille; };
    while (leases < kLeases) {
      const int i = static_cast<int>(own() % kJobs);
      Server& server = servers[static_cast<size_t>(i)];
      GpuJobId id;
      bool dead;
      {
        absl::MutexLock lock(&server.mutex);
        id = server.id;
        dead = server.dead;
        if (!dead && chance(5)) {
          machine_->Kill(id);
          server.dead = dead = true;
          ++deaths;
          if (chance(500)) arbiter_->Forget(id);  // else it is for the arbiter to see
        }
      }
      if (dead) {
        // The new process has the old one's PID.
        if (start(i, true)) {
          ++starts;
          on_devices += static_cast<int>(server.bytes.size());
        }
        continue;
      }
      if (chance(20)) {
        EXPECT_TRUE(arbiter_->Pin(id.pid, chance(200)).ok() || !machine_->IsAlive(id));
      }
      if (chance(5)) arbiter_->Park(id.pid).IgnoreError();
      if (chance(5)) arbiter_->Wake();
      LeaseOptions lease_options;
      lease_options.timeout = chance(800) ? absl::Milliseconds(own() % 50) : absl::Microseconds(own() % 1000);
      int asked = 0;
      const int patience = chance(100) ? static_cast<int>(own() % 5) : 1000000;
      lease_options.cancelled = [&] { return ++asked > patience; };
      absl::StatusOr<GpuLease> lease = arbiter_->Lease(id.pid, lease_options);
      if (absl::IsCancelled(lease.status())) ++cancelled;
      if (!lease.ok()) continue;
      ++leases;
      const bool used = machine_->Use(lease->job);
      for (uint32_t n = own() % 20; n > 0; --n) std::this_thread::yield();
      if (used) machine_->Unuse(lease->job);
      absl::Status released = arbiter_->Release(lease->job.pid, lease->job.start_ticks);
      EXPECT_TRUE(released.ok() || (absl::IsNotFound(released) && !machine_->IsAlive(lease->job)))
          << released;
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) threads.emplace_back(work, 1000 + t);
  for (std::thread& thread : threads) thread.join();
  machine_->Interfere(nullptr);

  // Everybody can still be served, one after the other, and has what it had.
  for (GpuJobSnapshot& job : arbiter_->Snapshot()) {
    EXPECT_EQ(job.leases, 0) << job.id.pid;
    EXPECT_EQ(job.waiters, 0) << job.id.pid;
    EXPECT_TRUE(job.state == GpuJobState::kResident || job.state == GpuJobState::kParked) << job.id.pid;
    if (!machine_->IsAlive(job.id)) {
      arbiter_->Forget(job.id);
      continue;
    }
    EXPECT_EQ(job.state == GpuJobState::kResident, machine_->IsResident(job.id)) << job.id.pid;
    EXPECT_TRUE(machine_->IsIntact(job.id)) << job.id.pid;
    ASSERT_TRUE(arbiter_->Pin(job.id.pid, false).ok());
  }
  EXPECT_EQ(arbiter_->host_bytes(), machine_->host_used());
  for (const GpuJobId& job : machine_->Jobs()) {
    absl::Status served = Lease(job.pid, Within(absl::Seconds(30)));
    // The host budget may stand against it for good.
    EXPECT_TRUE(served.ok() || absl::IsResourceExhausted(served)) << served;
    if (served.ok()) {
      EXPECT_TRUE(arbiter_->Release(job.pid).ok());
    }
  }
  // Only a server that was started meanwhile can have taken room that had been found.
  EXPECT_LE(machine_->overfull(), on_devices.load());
  const GpuArbiterCounters counters = arbiter_->counters();
  EXPECT_GE(leases.load(), kLeases);
  EXPECT_GT(counters.evictions, 500u);
  EXPECT_GT(counters.timeouts, 100u);
  EXPECT_GT(counters.failures, 50u);
  EXPECT_GT(cancelled.load(), 50);
  EXPECT_GT(deaths.load(), 20);
  EXPECT_GT(starts.load(), 20);
  EXPECT_GT(injected.load(), 100);
  RecordProperty("evictions", static_cast<int>(counters.evictions));
  RecordProperty("timeouts", static_cast<int>(counters.timeouts));
  RecordProperty("deaths", deaths.load());
}

}  // namespace
}  // namespace rekindle::daemon
