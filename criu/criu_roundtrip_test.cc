// Real CRIU, real processes: what goes out through the capture server comes back through RunRestore.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/pidfd.h"
#include "base/status.h"
#include "criu/failure.h"
#include "criu/image_files.h"
#include "criu/installation.h"
#include "criu/restore_session.h"
#include "criu/test_support.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::criu {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FunctionObserver : public RestoreObserver {
 public:
  explicit FunctionObserver(std::function<absl::Status(pid_t)> function) : function_(std::move(function)) {}
  absl::Status TasksReady(pid_t root) override { return function_(root); }

 private:
  std::function<absl::Status(pid_t)> function_;
};

class CriuRoundtripTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<Installation> criu = FindCriu();
    ASSERT_TRUE(criu.ok()) << criu.status();
    criu_ = *criu;
    children_before_ = OwnChildren();
  }

  void TearDown() override { EXPECT_EQ(OwnChildren(), children_before_); }

  // Dumps the job, which goes on, and lays its image files into the job's folder (a tmpfs).
  void DumpToFolder(TestJob* job) {
    MemoryConsumer consumer;
    DumpOptions options;
    options.pid = job->pid();
    StreamedDump dump = DumpStreamed(options, job->folder(), &consumer);
    ASSERT_TRUE(dump.exit.ok()) << FailureStatus(Operation::kDump, dump.exit, dump.log, "");
    ASSERT_TRUE(dump.served.ok()) << dump.served.status();
    files_ = consumer.TakeFiles();
    ASSERT_EQ(dump.served->size(), files_.size());
    WriteFiles(job->folder());
  }

  void WriteFiles(const std::string& folder) {
    for (const auto& [name, content] : files_) {
      ASSERT_TRUE(WriteFileAtomically(folder + "/" + name, content).ok());
    }
  }

  absl::StatusOr<RestoredTree> Restore(const TestJob& job, RestoreObserver* observer = nullptr,
                                       int cancel_fd = -1) {
    RestoreOptions options;
    options.images_directory = job.folder();
    return RunRestore(criu_, options, JobNamespaces(), observer, cancel_fd);
  }

  // `restore` is ended that long after its begin, with this status unless it was faster: each time nothing of
  // it is left.
  void RestoreToldToEndAtAnyMoment(
      absl::StatusCode ended,
      const std::function<absl::StatusOr<RestoredTree>(const TestJob& job, int delay_ms)>& restore) {
    TestJob job(1);
    ASSERT_TRUE(job.GoesOn());
    ASSERT_NO_FATAL_FAILURE(DumpToFolder(&job));
    job.Exit(1);
    job.Reap();
    ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    int times_ended = 0;
    for (int delay_ms = 0; delay_ms < 80; ++delay_ms) {
      SCOPED_TRACE(delay_ms);
      absl::StatusOr<RestoredTree> tree = restore(job, delay_ms);
      if (tree.ok()) {
        job.Reap();  // it was told to exit
      } else {
        EXPECT_EQ(tree.status().code(), ended) << tree.status();
        ++times_ended;
      }
      while (::waitpid(-1, nullptr, WNOHANG) > 0) {  // those of CRIU's that had ended fell to us
      }
      ASSERT_EQ(OwnChildren(), children_before_);
    }
    EXPECT_GT(times_ended, 0);
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  }

  Installation criu_;
  std::map<std::string, std::string> files_;
  std::set<pid_t> children_before_;
};

TEST_F(CriuRoundtripTest, JobGoesOnAfterDumpAndComesBackAsOurChild) {
  TestJob job;
  ASSERT_TRUE(job.GoesOn());
  ASSERT_NO_FATAL_FAILURE(DumpToFolder(&job));
  EXPECT_TRUE(job.GoesOn());
  EXPECT_EQ(files_.count("inventory.img"), 1u);
  job.Kill();

  uint32_t counter_when_ready = 0;
  FunctionObserver observer([&](pid_t root) {
    EXPECT_EQ(root, job.pid());
    counter_when_ready = job.counter();
    return absl::OkStatus();
  });
  absl::StatusOr<RestoredTree> tree = Restore(job, &observer);
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_EQ(tree->root, job.pid());
  EXPECT_TRUE(job.GoesOn());
  EXPECT_GT(job.counter(), counter_when_ready);
  job.Exit(7);
  EXPECT_EQ(job.Reap(), 7);
}

TEST_F(CriuRoundtripTest, TreeWithChildrenComesBack) {
  TestJob job(2);
  ASSERT_TRUE(job.GoesOn());
  ASSERT_NO_FATAL_FAILURE(DumpToFolder(&job));
  job.Exit(3);
  ASSERT_EQ(job.Reap(), 3);
  absl::StatusOr<std::vector<PstreeEntry>> tree = ParsePstree(files_["pstree.img"]);
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_EQ(tree->size(), 3u);
  // The page that is shared with us is a file, whose content is no part of the image: it still says "exit".
  absl::StatusOr<RestoredTree> restored = Restore(job);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(job.Reap(), 3);
}

TEST_F(CriuRoundtripTest, ObserverRefusalLeavesNothing) {
  TestJob job(1);
  ASSERT_TRUE(job.GoesOn());
  ASSERT_NO_FATAL_FAILURE(DumpToFolder(&job));
  std::vector<PstreeEntry> processes = *ParsePstree(files_["pstree.img"]);
  ASSERT_EQ(processes.size(), 2u);
  job.Exit(1);
  job.Reap();
  FunctionObserver observer([&](pid_t) { return absl::ResourceExhaustedError("no pages for you"); });
  absl::StatusOr<RestoredTree> tree = Restore(job, &observer);
  EXPECT_EQ(tree.status().code(), absl::StatusCode::kResourceExhausted) << tree.status();
  EXPECT_THAT(std::string(tree.status().message()), HasSubstr("no pages for you"));
  for (const PstreeEntry& process : processes) EXPECT_FALSE(ProcessExists(process.pid));

  // As std::thread says it.
  FunctionObserver without_threads(
      [](pid_t) -> absl::Status { throw std::system_error(EAGAIN, std::generic_category()); });
  tree = Restore(job, &without_threads);
  EXPECT_EQ(tree.status().code(), absl::StatusCode::kResourceExhausted) << tree.status();
  for (const PstreeEntry& process : processes) EXPECT_FALSE(ProcessExists(process.pid));
}

TEST_F(CriuRoundtripTest, CancelLeavesNothing) {
  TestJob job(1);
  ASSERT_TRUE(job.GoesOn());
  ASSERT_NO_FATAL_FAILURE(DumpToFolder(&job));
  std::vector<PstreeEntry> processes = *ParsePstree(files_["pstree.img"]);
  job.Exit(1);
  job.Reap();
  UniqueFd cancel(::eventfd(0, EFD_CLOEXEC));
  FunctionObserver observer([&](pid_t) {
    ::eventfd_write(cancel.get(), 1);
    return absl::OkStatus();
  });
  absl::StatusOr<RestoredTree> tree = Restore(job, &observer, cancel.get());
  EXPECT_EQ(tree.status().code(), absl::StatusCode::kCancelled) << tree.status();
  for (const PstreeEntry& process : processes) EXPECT_FALSE(ProcessExists(process.pid));

  // Cancelled before it began.
  tree = Restore(job, nullptr, cancel.get());
  EXPECT_EQ(tree.status().code(), absl::StatusCode::kCancelled) << tree.status();
  EXPECT_FALSE(ProcessExists(job.pid()));
}

// Also while CRIU has children to learn about the kernel, which does not end them when it ends.
TEST_F(CriuRoundtripTest, CancelAtAnyMomentLeavesNothing) {
  RestoreToldToEndAtAnyMoment(absl::StatusCode::kCancelled, [this](const TestJob& job, int delay_ms) {
    const UniqueFd cancel(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
    itimerspec when{};
    when.it_value.tv_nsec = 1 + delay_ms * 1'000'000;
    EXPECT_EQ(::timerfd_settime(cancel.get(), 0, &when, nullptr), 0);
    return Restore(job, nullptr, cancel.get());
  });
}

// The same, where somebody else ends it.
TEST_F(CriuRoundtripTest, CriuKilledAtAnyMomentLeavesNothing) {
  RestoreToldToEndAtAnyMoment(absl::StatusCode::kAborted, [this](const TestJob& job, int delay_ms) {
    std::atomic<bool> over = false;
    std::thread killer([&] {
      UniqueFd criu;
      while (!over && !criu.valid()) {
        for (pid_t pid : OwnChildren()) {
          if (children_before_.count(pid) != 0 || ::getsid(pid) != pid) continue;
          if (auto found = OpenProcess(pid); found.ok()) criu = std::move(*found);
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));  // which moment it is
      SendSignal(criu.get(), SIGKILL);
    });
    absl::StatusOr<RestoredTree> tree = Restore(job);
    over = true;
    killer.join();
    return tree;
  });
}

TEST_F(CriuRoundtripTest, KilledCriuLeavesNothing) {
  TestJob job(2);
  ASSERT_TRUE(job.GoesOn());
  ASSERT_NO_FATAL_FAILURE(DumpToFolder(&job));
  std::vector<PstreeEntry> processes = *ParsePstree(files_["pstree.img"]);
  job.Exit(1);
  job.Reap();
  FunctionObserver observer([&](pid_t root) {
    for (pid_t pid : OwnChildren()) {
      if (pid != root && children_before_.count(pid) == 0) ::kill(pid, SIGKILL);
    }
    return absl::OkStatus();
  });
  absl::StatusOr<RestoredTree> tree = Restore(job, &observer);
  EXPECT_EQ(tree.status().code(), absl::StatusCode::kAborted) << tree.status();
  for (const PstreeEntry& process : processes) EXPECT_FALSE(ProcessExists(process.pid));
}

// Our process dies when the tasks are made and have not run: CRIU must take them down.
TEST_F(CriuRoundtripTest, OwnDeathLeavesNothing) {
  TestJob job(1);
  ASSERT_TRUE(job.GoesOn());
  ASSERT_NO_FATAL_FAILURE(DumpToFolder(&job));
  std::vector<PstreeEntry> processes = *ParsePstree(files_["pstree.img"]);
  job.Exit(1);
  job.Reap();
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  pid_t restorer = ::fork();
  if (restorer == 0) {
    FunctionObserver observer([](pid_t) {
      ::kill(::getpid(), SIGKILL);
      return absl::OkStatus();
    });
    Restore(job, &observer).status().IgnoreError();
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(restorer, &status, 0), restorer);
  EXPECT_TRUE(WIFSIGNALED(status));
  // CRIU and the tree are ours now; all of them must end by themselves.
  while (::wait(nullptr) > 0) {
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  for (const PstreeEntry& process : processes) EXPECT_FALSE(ProcessExists(process.pid));
}

TEST_F(CriuRoundtripTest, TakenPidIsSaidAndTheHolderUnharmed) {
  TestJob job;
  ASSERT_TRUE(job.GoesOn());
  ASSERT_NO_FATAL_FAILURE(DumpToFolder(&job));
  absl::StatusOr<RestoredTree> tree = Restore(job);
  EXPECT_EQ(tree.status().code(), absl::StatusCode::kAlreadyExists) << tree.status();
  EXPECT_TRUE(job.GoesOn());
}

TEST_F(CriuRoundtripTest, FailingConsumerFailsTheDumpAndTheJobGoesOn) {
  class FailingConsumer : public MemoryConsumer {
   public:
    absl::Status Drain(const std::string& file_name, UniqueFd pipe) override {
      if (file_name.rfind("pages-", 0) == 0) return absl::ResourceExhaustedError("staging is full");
      return MemoryConsumer::Drain(file_name, std::move(pipe));
    }
  };
  TestJob job;
  ASSERT_TRUE(job.GoesOn());
  FailingConsumer consumer;
  DumpOptions options;
  options.pid = job.pid();
  options.after = AfterDump::kKill;  // a failed dump must not kill either
  StreamedDump dump = DumpStreamed(options, job.folder(), &consumer);
  EXPECT_EQ(dump.served.status().code(), absl::StatusCode::kResourceExhausted) << dump.served.status();
  EXPECT_FALSE(dump.exit.ok());
  EXPECT_TRUE(job.GoesOn());
}

// CRIU killed while the job is frozen and its parasite is at work.
TEST_F(CriuRoundtripTest, JobSurvivesCriuKilledInTheMiddleOfADump) {
  class KillingConsumer : public MemoryConsumer {
   public:
    explicit KillingConsumer(std::set<pid_t> spared) : spared_(std::move(spared)) {}
    absl::Status Drain(const std::string& file_name, UniqueFd pipe) override {
      if (file_name.rfind("pages-", 0) == 0) {
        // The first pages have come: the parasite is in the job. What is killed while it goes in, nobody
        // mends.
        pollfd pages{pipe.get(), POLLIN, 0};
        EXPECT_EQ(::poll(&pages, 1, 10'000), 1);
        for (pid_t pid : OwnChildren()) {
          if (spared_.count(pid) == 0) ::kill(pid, SIGKILL);
        }
      }
      return MemoryConsumer::Drain(file_name, std::move(pipe));
    }

   private:
    const std::set<pid_t> spared_;
  };
  TestJob job;
  ASSERT_TRUE(job.GoesOn());
  KillingConsumer consumer(OwnChildren());
  DumpOptions options;
  options.pid = job.pid();
  StreamedDump dump = DumpStreamed(options, job.folder(), &consumer);
  EXPECT_EQ(dump.exit.signal, SIGKILL);
  EXPECT_TRUE(job.GoesOn());
}

TEST_F(CriuRoundtripTest, ReadersUnderstandRealImages) {
  TestJob job(1);
  ASSERT_TRUE(job.GoesOn());
  ASSERT_NO_FATAL_FAILURE(DumpToFolder(&job));
  std::string pid = std::to_string(job.pid());

  absl::StatusOr<Inventory> inventory = ParseInventory(files_["inventory.img"]);
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  EXPECT_GE(inventory->image_version, 1u);

  absl::StatusOr<std::vector<PstreeEntry>> tree = ParsePstree(files_["pstree.img"]);
  ASSERT_TRUE(tree.ok()) << tree.status();
  ASSERT_EQ(tree->size(), 2u);
  EXPECT_EQ((*tree)[0].pid, job.pid());
  EXPECT_EQ((*tree)[0].ppid, 0);
  EXPECT_EQ((*tree)[0].sid, job.pid());
  EXPECT_THAT((*tree)[0].threads, ElementsAre(job.pid()));
  EXPECT_EQ((*tree)[1].ppid, job.pid());

  absl::StatusOr<std::vector<Vma>> areas = ParseMm(files_["mm-" + pid + ".img"]);
  ASSERT_TRUE(areas.ok()) << areas.status();
  const Vma* pattern = nullptr;
  for (const Vma& area : *areas) {
    if (area.plain_anonymous() && area.end - area.start >= 8 << 20) pattern = &area;
  }
  ASSERT_NE(pattern, nullptr);
  EXPECT_EQ(pattern->prot, static_cast<uint32_t>(PROT_READ | PROT_WRITE));

  std::string pagemap_image = files_["pagemap-" + pid + ".img"];
  absl::StatusOr<Pagemap> pagemap = ParsePagemap(pagemap_image);
  ASSERT_TRUE(pagemap.ok()) << pagemap.status();
  std::string pages = files_["pages-" + std::to_string(pagemap->pages_id) + ".img"];
  EXPECT_EQ(pages.size(), pagemap->present_pages() * kPageBytes);
  EXPECT_EQ(SerializePagemap(*pagemap), pagemap_image);
  // The pattern's first page, found by address, holds the pattern's first word.
  bool found = false;
  for (const PagemapEntry& entry : pagemap->entries) {
    if (pattern->start < entry.address || pattern->start >= entry.address + entry.pages * kPageBytes)
      continue;
    found = true;
    EXPECT_NE(entry.flags & kPagePresent, 0u);
    uint64_t bytes_at[2];
    memcpy(bytes_at, pages.data() + entry.file_offset + (pattern->start - entry.address), sizeof bytes_at);
    EXPECT_EQ(bytes_at[0], 1u);
    EXPECT_EQ(bytes_at[1], 0x9e3779b97f4a7c15u + 1);
  }
  EXPECT_TRUE(found);

  absl::StatusOr<std::vector<RegularFile>> regular = ParseRegularFiles(files_["files.img"]);
  ASSERT_TRUE(regular.ok()) << regular.status();
  std::vector<std::string> paths;
  for (const RegularFile& file : *regular) {
    paths.push_back(file.path);
    EXPECT_FALSE(file.ghost);
    if (file.path == job.folder() + "/shared") {
      EXPECT_EQ(file.size, 4096u);
    }
  }
  EXPECT_THAT(paths, Contains(job.folder() + "/shared"));
  EXPECT_THAT(paths, Contains(std::string(REKINDLE_CRIU_TEST_JOB)));

  absl::StatusOr<std::string> stats_file = ReadFile(job.folder() + "/stats-dump");
  ASSERT_TRUE(stats_file.ok()) << stats_file.status();
  absl::StatusOr<DumpStats> stats = ParseDumpStats(*stats_file);
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_GT(stats->frozen_us, 0u);
  EXPECT_GE(stats->pages_written, (8u << 20) / kPageBytes);
}

// An image that has gone through our writers is still one that CRIU takes.
TEST_F(CriuRoundtripTest, RewrittenImagesRestore) {
  TestJob job;
  ASSERT_TRUE(job.GoesOn());
  ASSERT_NO_FATAL_FAILURE(DumpToFolder(&job));
  job.Kill();
  absl::StatusOr<std::string> forgotten = ForgetSizes(files_["files.img"], {});
  ASSERT_TRUE(forgotten.ok()) << forgotten.status();
  files_["files.img"] = *forgotten;
  ASSERT_NO_FATAL_FAILURE(WriteFiles(job.folder()));
  absl::StatusOr<RestoredTree> tree = Restore(job);
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_TRUE(job.GoesOn());
  job.Exit(5);
  EXPECT_EQ(job.Reap(), 5);
}

TEST_F(CriuRoundtripTest, BadOptionsFail) {
  TestJob job;
  RestoreOptions options;
  options.images_directory = job.folder();
  options.log_file = "a/b";
  EXPECT_EQ(RunRestore(criu_, options, JobNamespaces(), nullptr, -1).status().code(),
            absl::StatusCode::kInvalidArgument);
  options.log_file = "restore.log";
  options.images_directory = job.folder() + "/none";
  EXPECT_EQ(RunRestore(criu_, options, JobNamespaces(), nullptr, -1).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace rekindle::criu
