#include "daemon/job_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/machine.h"
#include "base/process_stat.h"
#include "base/test_descriptors.h"
#include "base/test_small_disk.h"
#include "criu/process_tree.h"
#include "daemon/process_info.h"
#include "daemon/proto_conversion.h"

namespace rekindle::daemon {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class JobRegistryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = TemporaryDirectory::Make("/tmp", "job-registry-test.");
    ASSERT_TRUE(made.ok()) << made.status();
    directory_.emplace(*std::move(made));
    registry_.emplace(directory_->path() + "/jobs");
  }
  // A process that lives until the test ends it.
  Subprocess StartProcess() {
    SubprocessOptions options;
    options.argv = {"/bin/sleep", "1000"};
    auto started = Subprocess::Start(options);
    EXPECT_TRUE(started.ok()) << started.status();
    return *std::move(started);
  }
  static JobRecord Record(pid_t pid, const std::string& name,
                          const std::string& command = "/bin/sleep 1000") {
    JobRecord record;
    record.pid = pid;
    record.name = name;
    record.command = command;
    record.owner = 1000;
    record.started_unix_ns = UnixNanos();
    record.log = "/tmp/x.log";
    return record;
  }

  std::optional<TemporaryDirectory> directory_;
  std::optional<JobRegistry> registry_;
};

TEST_F(JobRegistryTest, AnotherProcessSeesWhatOneRecorded) {
  Subprocess process = StartProcess();
  auto added = registry_->Add(Record(process.pid(), "train", "python3 \"a\\b\" \xff"), false);
  ASSERT_TRUE(added.ok()) << added.status();
  ASSERT_TRUE(registry_->SetImage(*added, "train:1").ok());

  JobRegistry other(directory_->path() + "/jobs");
  auto found = other.FindByName("train");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->pid, process.pid());
  EXPECT_EQ(found->owner, 1000u);
  EXPECT_EQ(found->image, "train:1");
  EXPECT_EQ(found->log, "/tmp/x.log");
  EXPECT_EQ(found->command, "python3 \"a\\b\" ?");  // what is no text is replaced
  EXPECT_TRUE(JobRegistry::Lives(*found));
  EXPECT_FALSE(found->exit.has_value());
  ASSERT_TRUE(other.FindRunning(process.pid()).has_value());
  EXPECT_FALSE(other.FindRunning(::getpid()).has_value());
}

TEST_F(JobRegistryTest, AProvisionalJobIsForsakenOnceItsHolderHasGone) {
  Subprocess process = StartProcess();
  JobRecord record = Record(process.pid(), "train", "python3");
  record.provisional_of = ::getpid();
  record.provisional_of_start_ticks = criu::StartTicks(::getpid()).value();
  auto added = registry_->Add(record, false);
  ASSERT_TRUE(added.ok()) << added.status();
  JobRegistry other(directory_->path() + "/jobs");
  JobRecord found = *other.FindByName("train");
  EXPECT_FALSE(JobRegistry::IsForsaken(found));
  found.provisional_of_start_ticks += 2;  // its number is another's now
  EXPECT_TRUE(JobRegistry::IsForsaken(found));
  ASSERT_TRUE(other.SetKept(*added).ok());
  found = *registry_->FindByName("train");
  found.provisional_of_start_ticks += 2;
  EXPECT_FALSE(JobRegistry::IsForsaken(found));
}

// Whoever has the lock is one of us: however long that takes, each waits for its turn.
TEST_F(JobRegistryTest, ManyThreadsAtOnce) {
  constexpr int kThreads = 300;
  Subprocess process = StartProcess();
  std::atomic<int> failed = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      if (!registry_->Add(Record(process.pid(), "web"), /*unique_name=*/true).ok()) ++failed;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  auto jobs = registry_->List();
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  EXPECT_EQ(jobs->size(), static_cast<size_t>(kThreads));
}

TEST_F(JobRegistryTest, TheNameOfARunningJobIsTaken) {
  Subprocess first = StartProcess(), second = StartProcess();
  ASSERT_TRUE(registry_->Add(Record(first.pid(), "web"), false).ok());
  EXPECT_EQ(registry_->CheckNameIsFree("web").code(), absl::StatusCode::kAlreadyExists);
  auto refused = registry_->Add(Record(second.pid(), "web"), false);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("web"));

  auto numbered = registry_->Add(Record(second.pid(), "web"), true);
  ASSERT_TRUE(numbered.ok()) << numbered.status();
  EXPECT_EQ(numbered->name, "web-2");

  ASSERT_TRUE(first.Signal(SIGKILL).ok());
  ASSERT_TRUE(first.Wait().ok());
  EXPECT_TRUE(registry_->CheckNameIsFree("web").ok()) << "its job has ended";
}

TEST_F(JobRegistryTest, ANameIsMadeFromTheCommand) {
  Subprocess process = StartProcess();
  auto added = registry_->Add(Record(process.pid(), "", "/usr/bin/python3 train.py"), false);
  ASSERT_TRUE(added.ok()) << added.status();
  EXPECT_EQ(added->name, "python3");
  EXPECT_EQ(JobNameFromCommand("./a b"), "a");
  for (const char* odd : {"", "/", "123", "-x", "\xff\xfe", "/bin/.hidden"}) {
    EXPECT_TRUE(CheckJobName(JobNameFromCommand(odd)).ok()) << odd << " -> " << JobNameFromCommand(odd);
  }
}

TEST(ImageNameOfTest, IsTheJobsOwnIfThatCanBeOne) {
  for (const char* name : {"train", "llm-7b_x.2", "1a"}) EXPECT_EQ(ImageNameOf(name), name);
  EXPECT_EQ(ImageNameOf("Train"), "train");
  EXPECT_EQ(ImageNameOf("a..b_-c-"), "a.b_c");
  EXPECT_EQ(ImageNameOf("_x"), "x");
  EXPECT_EQ(ImageNameOf("foo:bar"), "foo-bar");
  EXPECT_EQ(ImageNameOf("___"), "job");
}

TEST_F(JobRegistryTest, HowAJobEndedIsKept) {
  Subprocess process = StartProcess();
  auto added = registry_->Add(Record(process.pid(), "short"), false);
  ASSERT_TRUE(added.ok());
  ASSERT_TRUE(process.Signal(SIGTERM).ok());
  auto exit = process.Wait();
  ASSERT_TRUE(exit.ok());
  ASSERT_TRUE(registry_->SetExit(*added, *exit).ok());
  auto jobs = registry_->List();
  ASSERT_TRUE(jobs.ok());
  ASSERT_EQ(jobs->size(), 1u);
  EXPECT_FALSE(JobRegistry::Lives((*jobs)[0]));
  ASSERT_TRUE((*jobs)[0].exit.has_value());
  EXPECT_EQ((*jobs)[0].exit->signal, SIGTERM);
}

// Makes files until there is room for none.
void FillUp(const std::string& folder) {
  const std::string some(4096, 'x');
  for (int i = 0;; ++i) {
    auto file = OpenFile(absl::StrCat(folder, "/filler-", i), O_WRONLY | O_CREAT, 0600);
    if (!file.ok() || !WriteFully(file->get(), some.data(), some.size(), folder).ok()) return;
  }
}

TEST_F(JobRegistryTest, OneThatWasNeverBegunLeavesWhatThereWas) {
  std::optional<JobRecord> before;
  {
    const Subprocess process = StartProcess();
    auto ended = registry_->Add(Record(process.pid(), "train"), false, &before);
    ASSERT_TRUE(ended.ok()) << ended.status();
    EXPECT_FALSE(before.has_value());
    ASSERT_TRUE(registry_->SetExit(*ended, ExitState{3, 0}).ok());
  }
  const Subprocess next = StartProcess();
  auto noted = registry_->Add(Record(next.pid(), "train"), false, &before);
  ASSERT_TRUE(noted.ok()) << noted.status();
  ASSERT_TRUE(before.has_value());
  registry_->Forget(*noted, before);
  auto found = registry_->FindByName("train");
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_TRUE(found->exit.has_value());
  EXPECT_EQ(found->exit->code, 3);
  registry_->Forget(*noted, std::nullopt);
  EXPECT_TRUE(registry_->FindByName("train").ok()) << "another one's";
  registry_->Forget(*found, std::nullopt);
  EXPECT_TRUE(absl::IsNotFound(registry_->FindByName("train").status()));
}

TEST_F(JobRegistryTest, HowJobsEndedIsKeptWhereTheFolderIsFull) {
  std::vector<Subprocess> processes;
  for (int i = 0; i < 3; ++i) processes.push_back(StartProcess());
  OnSmallDisk(directory_->path(), "256k", [&] {
    std::vector<JobRecord> jobs;
    for (size_t i = 0; i < processes.size(); ++i) {
      auto added = registry_->Add(Record(processes[i].pid(), absl::StrCat("job-", i)), false);
      EXPECT_TRUE(added.ok()) << added.status();
      if (added.ok()) jobs.push_back(*added);
    }
    FillUp(directory_->path());
    EXPECT_EQ(registry_->Add(Record(processes[0].pid(), "new"), false).status().code(),
              absl::StatusCode::kResourceExhausted);
    for (int code = 1; const JobRecord& job : jobs) {
      const absl::Status recorded = registry_->SetExit(job, ExitState{code, 0});
      EXPECT_TRUE(recorded.ok()) << recorded;
      FillUp(directory_->path());
      auto found = registry_->FindByName(job.name);
      EXPECT_TRUE(found.ok() && found->exit && found->exit->code == code) << job.name;
      ++code;
    }
    EXPECT_EQ(registry_->List()->size(), jobs.size());
  });
}

// Opens of files in a folder, by whomever.
class OpensIn {
 public:
  explicit OpensIn(const std::string& folder) : events_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
    EXPECT_GE(::inotify_add_watch(events_.get(), folder.c_str(), IN_OPEN), 0);
  }
  // Since the last call.
  std::set<std::string> Take() {
    std::set<std::string> names;
    alignas(inotify_event) char space[16 << 10];
    for (ssize_t got; (got = ::read(events_.get(), space, sizeof space)) > 0;) {
      for (const char* at = space; at < space + got;) {
        const auto* event = reinterpret_cast<const inotify_event*>(at);
        if (event->len > 0 && (event->mask & IN_ISDIR) == 0) names.insert(event->name);
        at += sizeof(inotify_event) + event->len;
      }
    }
    return names;
  }

 private:
  const UniqueFd events_;
};

TEST_F(JobRegistryTest, RecordsThatHaveNotChangedAreNotReadAgain) {
  Subprocess process = StartProcess();
  std::vector<JobRecord> jobs;
  for (const char* name : {"a", "b", "c"}) {
    auto added = registry_->Add(Record(process.pid(), name), false);
    ASSERT_TRUE(added.ok()) << added.status();
    jobs.push_back(*added);
  }
  const std::string folder = directory_->path() + "/jobs";
  OpensIn opens(folder);
  // As soon as their stamps tell them from what may be written.
  const Deadline deadline(absl::Seconds(60));
  for (bool remembered = false; !remembered;) {
    ASSERT_FALSE(deadline.passed());
    opens.Take();
    ASSERT_EQ(registry_->List()->size(), 3u);
    remembered = opens.Take().empty();
  }
  JobRegistry other(folder);
  ASSERT_TRUE(other.SetExit(jobs[1], ExitState{7, 0}).ok());
  ASSERT_TRUE(RemoveTree(folder + "/c.json").ok());
  opens.Take();
  auto listed = registry_->List();
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_THAT(opens.Take(), ElementsAre("b.json"));
  std::map<std::string, std::optional<ExitState>> exits;
  for (const JobRecord& job : *listed) exits[job.name] = job.exit;
  ASSERT_EQ(exits.size(), 2u);
  EXPECT_FALSE(exits.at("a").has_value());
  ASSERT_TRUE(exits.at("b").has_value());
  EXPECT_EQ(exits.at("b")->code, 7);
}

TEST_F(JobRegistryTest, OfAnEndThatNobodySawThatItWasIsKept) {
  Subprocess process = StartProcess();
  auto job = registry_->Add(Record(process.pid(), "left"), false);
  ASSERT_TRUE(job.ok()) << job.status();
  ASSERT_TRUE(registry_->SetExit(*job, std::nullopt).ok());
  JobRegistry other(directory_->path() + "/jobs");
  auto found = other.FindByName("left");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(found->exit.has_value());
  EXPECT_NE(found->exited_unix_ns, 0);
  EXPECT_FALSE(JobRegistry::Lives(*found));
  // Whoever saw it knows better, and stays right.
  ASSERT_TRUE(other.SetExit(*job, ExitState{7, 0}).ok());
  ASSERT_TRUE(registry_->SetExit(*job, std::nullopt).ok());
  EXPECT_EQ(registry_->FindByName("left")->exit->code, 7);
}

TEST_F(JobRegistryTest, AnotherProcessOfTheSamePidIsAnotherJob) {
  Subprocess process = StartProcess();
  auto added = registry_->Add(Record(process.pid(), "reused"), false);
  ASSERT_TRUE(added.ok());
  JobRecord older = *added;
  older.start_ticks -= 2;  // no tick of rounding
  EXPECT_FALSE(JobRegistry::Lives(older));
  // News of the older one must not touch the record of the newer.
  ASSERT_TRUE(registry_->SetExit(older, ExitState{3, 0}).ok());
  auto found = registry_->FindByName("reused");
  ASSERT_TRUE(found.ok());
  EXPECT_FALSE(found->exit.has_value());
}

TEST_F(JobRegistryTest, EndedJobsAreForgottenAfterADay) {
  Subprocess process = StartProcess();
  JobRecord old = Record(process.pid(), "old");
  old.started_unix_ns = UnixNanos() - JobRegistry::kKeepEndedNanos - 1;
  ASSERT_TRUE(registry_->Add(old, false).ok());
  auto jobs = registry_->List();
  ASSERT_TRUE(jobs.ok());
  EXPECT_EQ(jobs->size(), 1u) << "it runs";
  ASSERT_TRUE(process.Signal(SIGKILL).ok());
  ASSERT_TRUE(process.Wait().ok());
  jobs = registry_->List();
  ASSERT_TRUE(jobs.ok());
  EXPECT_TRUE(jobs->empty());
  EXPECT_FALSE(PathExists(directory_->path() + "/jobs/old.json"));
}

TEST_F(JobRegistryTest, OfManyEndedJobsTheLatestAreKept) {
  Subprocess process = StartProcess();
  const pid_t pid = process.pid();
  ASSERT_TRUE(process.Signal(SIGKILL).ok());
  ASSERT_TRUE(process.Wait().ok());
  constexpr uid_t kOther = 1001;
  const auto add = [&](const std::string& name, uid_t owner, int64_t started) {
    JobRecord job = Record(pid, name);
    job.owner = owner;
    job.started_unix_ns = started;
    ASSERT_TRUE(registry_->Add(job, false).ok());
  };
  const int64_t now = UnixNanos();
  add("others", kOther, now - 1'000'000'000);
  for (size_t i = 0; i < 2 * JobRegistry::kMostEndedOfOne; ++i)
    add(absl::StrCat("job-", i), 1000, now + static_cast<int64_t>(i));
  auto jobs = registry_->List();
  ASSERT_TRUE(jobs.ok());
  EXPECT_LT(jobs->size(), 2 * JobRegistry::kMostEndedOfOne);
  EXPECT_GT(jobs->size(), JobRegistry::kMostEndedOfOne);
  EXPECT_TRUE(registry_->FindByName("others").ok());
  EXPECT_FALSE(registry_->FindByName("job-0").ok());
  for (size_t i = JobRegistry::kMostEndedOfOne; i < 2 * JobRegistry::kMostEndedOfOne; ++i)
    EXPECT_TRUE(registry_->FindByName(absl::StrCat("job-", i)).ok()) << i;
}

TEST_F(JobRegistryTest, ALongCommandIsCut) {
  Subprocess process = StartProcess();
  auto added = registry_->Add(Record(process.pid(), "long", std::string(100'000, 'x')), false);
  ASSERT_TRUE(added.ok()) << added.status();
  auto found = registry_->FindByName("long");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->command, std::string(4096, 'x'));
}

TEST_F(JobRegistryTest, RecordsThatCantBeReadKeepTheirNamesAndAreToldOnce) {
  Subprocess process = StartProcess();
  ASSERT_TRUE(registry_->Add(Record(process.pid(), "good"), false).ok());
  const std::string folder = directory_->path() + "/jobs/";
  for (const char* text : {"", "{", "[]", "{\"format\":2}", "{\"format\":1,\"pid\":\"x\",\"name\":7}",
                           "{\"format\":1,\"pid\":-1,\"name\":\"bad\"}",
                           "{\"format\":1,\"pid\":1,\"name\":\"bad\",\"image\":{\"of\":\"later\"}}",
                           "{\"format\":1,\"pid\":1,\"name\":\"bad\",\"of_later\":true}"}) {
    ASSERT_TRUE(WriteFileAtomically(folder + "bad.json", text).ok());
    auto jobs = registry_->List();
    ASSERT_TRUE(jobs.ok());
    std::vector<std::string> names;
    for (const JobRecord& job : *jobs) names.push_back(job.name);
    EXPECT_THAT(names, ElementsAre("good")) << text;
    EXPECT_EQ(registry_->FindByName("bad").status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(registry_->CheckNameIsFree("bad").code(), absl::StatusCode::kAlreadyExists) << text;
    EXPECT_FALSE(registry_->Add(Record(process.pid(), "bad"), false).ok());
    EXPECT_EQ(registry_->Add(Record(process.pid(), "bad"), true)->name, "bad-2");
    ASSERT_TRUE(RemoveTree(folder + "bad-2.json").ok());
    EXPECT_EQ(*ReadFile(folder + "bad.json"), text);
  }
  JobRegistry other(directory_->path() + "/jobs");
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(other.List().ok());
  const std::string log = ::testing::internal::GetCapturedStderr();
  const size_t told = log.find("bad.json");
  ASSERT_NE(told, std::string::npos) << log;
  EXPECT_EQ(log.find("bad.json", told + 1), std::string::npos) << log;
}

TEST_F(JobRegistryTest, WhatANewerVersionHasWrittenStays) {
  Subprocess process = StartProcess();
  auto job = registry_->Add(Record(process.pid(), "train"), false);
  ASSERT_TRUE(job.ok()) << job.status();
  const std::string path = directory_->path() + "/jobs/train.json";
  std::string text = *ReadFile(path);
  text.replace(text.rfind('}'), 1, ", \"of_later\": true}");
  ASSERT_TRUE(WriteFileAtomically(path, text).ok());
  EXPECT_TRUE(registry_->SetImage(*job, "train:1").ok());
  EXPECT_TRUE(registry_->SetExit(*job, ExitState{}).ok());
  EXPECT_EQ(*ReadFile(path), text);
  EXPECT_THAT(std::string(registry_->FindByName("train").status().message()), HasSubstr("newer version"));
}

TEST_F(JobRegistryTest, WithoutDescriptorsNothingIsTakenForGone) {
  Subprocess process = StartProcess();
  auto added = registry_->Add(Record(process.pid(), "train"), false);
  ASSERT_TRUE(added.ok()) << added.status();
  for (int left = 0; left < 2; ++left) {
    const FewDescriptorsLeft few(left);
    EXPECT_TRUE(JobRegistry::Lives(*added));
    EXPECT_FALSE(registry_->CheckNameIsFree("train").ok());
    EXPECT_EQ(registry_->Add(Record(process.pid(), "train"), true).status().code(),
              absl::StatusCode::kResourceExhausted)
        << left;
  }
  const FewDescriptorsLeft none;
  EXPECT_EQ(registry_->FindByName("train").status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(JobRegistryTest, NobodyIsToldOthersNames) {
  Subprocess process = StartProcess();
  ASSERT_TRUE(registry_->Add(Record(process.pid(), "train"), false).ok());
  absl::Status status = registry_->FindByName("trane").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("trane"), Not(HasSubstr("train"))));
  for (const char* bad : {"", "a/b", "..", ".x", "-x", "4711", "a b"}) {
    EXPECT_EQ(registry_->FindByName(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST_F(JobRegistryTest, ManyAreDescribedByOneLookAtAllProcesses) {
  JobRecord record = Record(::getpid(), "many");
  record.boot_id = ThisBootId();
  record.start_ticks = ReadProcessStat(record.pid)->start_ticks;
  const ProcessChildren before;
  const Subprocess later = StartProcess();
  v1::Job then, now;
  ToProto(record, &then, &before);
  ToProto(record, &now);
  EXPECT_EQ(then.state(), "running");
  EXPECT_EQ(then.processes() + 1, now.processes());
  // One that has begun since is not left out.
  record.pid = later.pid();
  record.start_ticks = ReadProcessStat(record.pid)->start_ticks;
  ToProto(record, &then, &before);
  EXPECT_EQ(then.processes(), 1u);
}

TEST(ProcessInfo, SelfAndNobody) {
  auto self = ReadProcessInfo(::getpid());
  ASSERT_TRUE(self.ok()) << self.status();
  EXPECT_EQ(self->parent, ::getppid());
  EXPECT_EQ(self->uid, ::geteuid());
  EXPECT_GT(self->start_ticks, 0u);
  TreeUse use = MeasureTree(::getpid());
  EXPECT_GE(use.processes, 1u);
  EXPECT_GT(use.resident_bytes, 1u << 20);
  EXPECT_EQ(ReadProcessInfo(1 << 30).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(MeasureTree(1 << 30).processes, 0u);
}

TEST(ProcessInfo, ChildrenAreLookedForAsOftenAsOneWants) {
  const auto first = RecentChildren(absl::ZeroDuration());
  EXPECT_EQ(RecentChildren(absl::InfiniteDuration()), first);
  EXPECT_NE(RecentChildren(absl::ZeroDuration()), first);
  EXPECT_GE(MeasureTree(::getpid(), *first).processes, 1u);
}

}  // namespace
}  // namespace rekindle::daemon
