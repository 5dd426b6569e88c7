// Fifty model servers lease four simulated GPUs at random, thousands of times, while calls of the driver
// fail: nobody waits for ever, no server computes on wrong bytes, and neither a GPU nor the host budget is
// overfull.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "base/file.h"
#include "base/process_stat.h"
#include "base/subprocess.h"
#include "daemon/gpu_jobs.h"

namespace rekindle::daemon {
namespace {

constexpr int kServers = 50;
constexpr int kGpus = 4;
constexpr int kThreads = 8;
// $REKINDLE_LEASES: ten thousand by hand, fewer in every run of the tests.
const int kLeases = std::getenv("REKINDLE_LEASES") ? std::atoi(std::getenv("REKINDLE_LEASES")) : 500;
constexpr uint64_t kServerBytes = 1 << 20, kContextBytes = 1 << 20;
constexpr uint64_t kServersOnAGpu = 5;
constexpr uint64_t kNeed = kServerBytes + kContextBytes;
constexpr uint64_t kHostBudget = (kServers + 2) * kNeed;
const std::string kPrograms = REKINDLE_PROGRAMS;

std::string Uuid(int gpu) { return absl::StrCat("GPU-", gpu, "0000000-0000-4000-8000-000000000000"); }

// The simulated driver's server, and the environment in which this process and its children see it.
class Machine {
 public:
  explicit Machine(const std::string& folder) : socket_(folder + "/gpus.sock") {
    SubprocessOptions start;
    start.argv = {kPrograms + "/gpu_sim/gpu_sim_server", "--socket", socket_, "--context-bytes",
                  absl::StrCat(kContextBytes)};
    for (int gpu = 0; gpu < kGpus; ++gpu) {
      start.argv.push_back("--gpu");
      start.argv.push_back(absl::StrCat(Uuid(gpu + 1), ",NVIDIA H200,", kServersOnAGpu * kNeed));
    }
    int ready[2];
    EXPECT_EQ(::pipe2(ready, O_CLOEXEC), 0);
    start.descriptors = {{ready[1], STDOUT_FILENO}, {STDERR_FILENO, STDERR_FILENO}};
    server_ = *Subprocess::Start(start);
    ::close(ready[1]);
    char word[6] = "";
    EXPECT_EQ(::read(ready[0], word, 5), 5) << "the simulated driver's server did not start";
    ::close(ready[0]);
    ::setenv("REKINDLE_GPU_SIM", socket_.c_str(), 1);
    ::setenv("LD_LIBRARY_PATH", (kPrograms + "/gpu_sim").c_str(), 1);
  }
  ~Machine() { (void)server_.Signal(SIGTERM); }

  void Control(std::vector<std::string> words) {
    words.insert(words.begin(), {kPrograms + "/gpu_sim/gpu_sim_ctl", "--socket", socket_});
    auto done = RunCommand(words, absl::Seconds(60));
    ASSERT_TRUE(done.ok() && done->exit.ok()) << (done.ok() ? done->output : done.status().ToString());
  }

 private:
  const std::string socket_;
  Subprocess server_;
};

struct Server {
  std::string state_file;
  Subprocess process;

  int64_t Step() const {
    auto line = ReadFile(state_file);
    int64_t step = -1;
    if (!line.ok() || !absl::SimpleAtoi(std::string(line->substr(0, line->find(' '))), &step)) return -1;
    return step;
  }
  bool Lives() const {
    auto stat = ReadProcessStat(process.pid());
    return stat.ok() && !stat->ending();
  }
  // False: it ended, or made no step for a minute.
  bool AwaitStep() const {
    const int64_t from = Step();
    const absl::Time deadline = absl::Now() + absl::Minutes(1);
    while (Step() <= from) {
      if (!Lives() || absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(2));
    }
    return true;
  }
};

TEST(GpuLeaseStress, FiftyServersOnFourGpus) {
  auto folder = TemporaryDirectory::Make("/tmp", "rekindle-lease-stress-");
  ASSERT_TRUE(folder.ok());
  Machine machine(folder->path());
  gpu::MoverOptions options;
  options.context_bytes = 0;  // the simulated driver takes none
  options.ledger_directory = folder->path() + "/ledger";
  options.room_timeout = absl::ZeroDuration();
  gpu::JobMover mover(options);
  GpuJobs jobs(&mover, kHostBudget, folder->path() + "/leases.json");

  std::vector<Server> servers(kServers);
  for (int i = 0; i < kServers; ++i) {
    servers[i].state_file = absl::StrCat(folder->path(), "/", i);
    SubprocessOptions start;
    start.argv = {kPrograms + "/gpu_vector_job",
                  "--state-file",
                  servers[i].state_file,
                  "--bytes",
                  absl::StrCat(kServerBytes),
                  "--first-gpu",
                  absl::StrCat(i % kGpus),
                  "--step-ms",
                  "50",
                  "--seed",
                  absl::StrCat(i + 1)};
    start.descriptors = {{STDERR_FILENO, STDERR_FILENO}};
    auto process = Subprocess::Start(start);
    ASSERT_TRUE(process.ok()) << process.status();
    servers[i].process = *std::move(process);
    ASSERT_TRUE(servers[i].AwaitStep()) << "server " << i;
    ASSERT_TRUE(jobs.Park(servers[i].process.pid(), absl::Seconds(30), "to begin with").ok());
  }

  std::atomic<int> asked{0}, granted{0};
  absl::Mutex mutex;
  std::vector<std::string> complaints;
  auto complain = [&](const std::string& what) {
    absl::MutexLock lock(&mutex);
    complaints.push_back(what);
  };
  std::atomic<bool> done{false};
  auto route = [&](unsigned seed) {
    std::mt19937 random(seed);
    while (asked.fetch_add(1) < kLeases) {
      const Server& server = servers[random() % kServers];
      LeaseOptions lease;
      lease.timeout = random() % 10 == 0 ? absl::Milliseconds(5) : absl::Seconds(60);
      auto got = jobs.Lease(server.process.pid(), lease);
      if (!got.ok()) continue;
      ++granted;
      // While it is leased nobody parks it.
      auto state = mover.States({{server.process.pid()}});
      if (!state[0].ok() || *state[0] != gpu::ProcessState::kRunning) {
        complain(absl::StrCat(server.state_file, " is leased and ",
                              state[0].ok() ? gpu::NameOf(*state[0]) : state[0].status().message()));
      }
      if (random() % 50 == 0 && !server.AwaitStep()) complain(server.state_file + " makes no step");
      auto left = jobs.Release(server.process.pid(), LeaseKind::kLasting);
      if (!left.ok()) complain(std::string(left.status().message()));
    }
  };
  // One call in some hundred fails, of each kind in turn.
  std::thread faults([&] {
    const char* calls[] = {"lock", "checkpoint", "restore", "unlock"};
    const char* codes[] = {"999", "2", "600"};
    for (unsigned round = 0; !done; ++round) {
      const int before = asked;
      machine.Control({"inject", calls[round % 4], "--nth", "1", "--fail", codes[round / 4 % 3]});
      while (!done && asked < before + 50) absl::SleepFor(absl::Milliseconds(5));
    }
    machine.Control({"clear"});
  });
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) threads.emplace_back(route, i + 1);
  for (std::thread& thread : threads) thread.join();
  done = true;
  faults.join();

  EXPECT_THAT(complaints, testing::IsEmpty());
  EXPECT_GT(granted, kLeases / 2);
  RecordProperty("granted", granted);
  printf("%d of %d leases granted\n", granted.load(), kLeases);
  // Every one is whole: it goes on when its turn comes, and has checked all it has computed.
  for (Server& server : servers) {
    LeaseOptions lease;
    lease.timeout = absl::Seconds(60);
    auto got = jobs.Lease(server.process.pid(), lease);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(server.AwaitStep()) << server.state_file;
    EXPECT_TRUE(jobs.Release(server.process.pid(), LeaseKind::kLasting).ok());
  }
}

}  // namespace
}  // namespace rekindle::daemon
