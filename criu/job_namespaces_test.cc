#include "criu/job_namespaces.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/subprocess.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::criu {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Pair;

absl::Status AsStatus(bool ok) { return ok ? absl::OkStatus() : absl::InternalError("it failed"); }

// A process with a number and a host name of its own, below the init of its PID namespace.
class JobNamespacesTest : public testing::Test {
 protected:
  void SetUp() override {
    int told[2];
    ASSERT_EQ(::pipe2(told, O_CLOEXEC), 0);
    first_ = ::fork();
    ASSERT_GE(first_, 0);
    if (first_ == 0) {
      pid_t init = 0;
      if (::unshare(CLONE_NEWPID | CLONE_NEWUTS) != 0 || (init = ::fork()) < 0)
        ::_exit(errno == EPERM ? 2 : 1);
      if (init > 0) {
        ::waitpid(init, nullptr, 0);
        ::_exit(0);
      }
      const pid_t job = ::fork();
      if (job > 0) {
        ::waitpid(job, nullptr, 0);
        ::_exit(0);
      }
      if (job < 0 || ::sethostname("inside", 6) != 0) ::_exit(1);
      const pid_t number = ::getpid();
      (void)!::write(told[1], &number, sizeof number);
      for (;;) ::pause();
    }
    ::close(told[1]);
    const bool is_ready = ::read(told[0], &inside_, sizeof inside_) == sizeof inside_;
    ::close(told[0]);
    if (!is_ready) {
      int status = 0;
      ::waitpid(first_, &status, 0);
      first_ = 0;
      if (WIFEXITED(status) && WEXITSTATUS(status) == 2) GTEST_SKIP() << "namespaces need root";
      FAIL() << "no process in a namespace";
    }
    init_ = ChildOf(first_);
    job_ = ChildOf(init_);
    ASSERT_GT(job_, 0);
  }
  void TearDown() override {
    if (init_ > 0) ::kill(init_, SIGKILL);
    if (first_ > 0) ::waitpid(first_, nullptr, 0);
  }

  static pid_t ChildOf(pid_t pid) {
    auto text = ReadFile(absl::StrCat("/proc/", pid, "/task/", pid, "/children"));
    return text.ok() ? std::atoi(text->c_str()) : 0;
  }

  pid_t first_ = 0, init_ = 0, job_ = 0;
  pid_t inside_ = 0;  // the job's number there: sanitizers' threads take numbers too
};

TEST_F(JobNamespacesTest, NumbersBothWays) {
  auto namespaces = JobNamespaces::Of(job_);
  ASSERT_TRUE(namespaces.ok()) << namespaces.status();
  EXPECT_TRUE(namespaces->entered());
  EXPECT_NE(inside_, job_);
  EXPECT_EQ(namespaces->Inside(job_), inside_);
  auto outside = namespaces->Outside(inside_);
  ASSERT_TRUE(outside.ok()) << outside.status();
  EXPECT_EQ(*outside, job_);
  EXPECT_TRUE(absl::IsNotFound(namespaces->Outside(9999).status()));
}

TEST_F(JobNamespacesTest, NumbersThatWereLearntAreNotBelievedForEver) {
  auto namespaces = JobNamespaces::Of(job_);
  ASSERT_TRUE(namespaces.ok()) << namespaces.status();
  namespaces->LearnNumbers();
  EXPECT_EQ(*namespaces->Outside(inside_), job_);
  // One that is born after it, and dies.
  SubprocessOptions options;
  options.argv = {"/bin/sh", "-c", "echo; read line"};
  int to_child[2], from_child[2];
  ASSERT_EQ(::pipe2(to_child, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(from_child, O_CLOEXEC), 0);
  options.descriptors = {{to_child[0], 0}, {from_child[1], 1}};
  auto started = namespaces->Start(options);
  ASSERT_TRUE(started.ok()) << started.status();
  char byte;
  ASSERT_EQ(::read(from_child[0], &byte, 1), 1);
  const pid_t number = namespaces->Inside(started->pid());
  EXPECT_EQ(*namespaces->Outside(number), started->pid());
  for (const int fd : {to_child[0], to_child[1], from_child[0], from_child[1]}) ::close(fd);
  ASSERT_TRUE(started->Wait().ok());
  EXPECT_TRUE(absl::IsNotFound(namespaces->Outside(number).status()));
}

TEST_F(JobNamespacesTest, ProgramsStartInside) {
  auto namespaces = JobNamespaces::Of(job_);
  ASSERT_TRUE(namespaces.ok()) << namespaces.status();
  TemporaryDirectory folder = TemporaryDirectory::Make("/tmp", "namespaces-").value();
  SubprocessOptions options;
  options.argv = {"/bin/sh", "-c", "echo $(readlink /proc/self/ns/pid) $(uname -n) > seen"};
  options.working_directory = folder.path();
  auto started = namespaces->Start(options);
  ASSERT_TRUE(started.ok()) << started.status();
  auto exit = started->Wait();
  ASSERT_TRUE(exit.ok() && exit->ok());
  auto seen = ReadFile(absl::StrCat(folder.path(), "/seen"));
  ASSERT_TRUE(seen.ok());
  char space[64] = {};
  ASSERT_GT(::readlink(absl::StrCat("/proc/", job_, "/ns/pid").c_str(), space, sizeof space - 1), 0);
  EXPECT_EQ(*seen, absl::StrCat(space, " inside\n"));
}

TEST_F(JobNamespacesTest, AroundAnyProcessOfAContainer) {
  for (const pid_t process : {init_, job_}) {
    auto namespaces = JobNamespaces::Around(process);
    ASSERT_TRUE(namespaces.ok()) << namespaces.status();
    EXPECT_TRUE(namespaces->entered());
    EXPECT_FALSE(namespaces->enters_mounts());
    EXPECT_THAT(namespaces->AllNumbers(), AllOf(Contains(Pair(1, init_)), Contains(Pair(inside_, job_))));
    char name[16] = {};
    EXPECT_TRUE(namespaces->Within([&] { return AsStatus(::gethostname(name, sizeof name) == 0); }).ok());
    EXPECT_STREQ(name, "inside");
  }
  EXPECT_TRUE(absl::IsInvalidArgument(JobNamespaces::Around(::getpid()).status()));
}

TEST_F(JobNamespacesTest, AChildHasTheNumberThatItIsToHave) {
  auto namespaces = JobNamespaces::Around(job_);
  ASSERT_TRUE(namespaces.ok()) << namespaces.status();
  SubprocessOptions options;
  options.argv = {"/bin/sh", "-c", "exit $(($$ - 700))"};
  options.number = 742;
  auto started = namespaces->Start(options);
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_EQ(started->Wait().value().code, 42);
  options.number = inside_;
  EXPECT_TRUE(absl::IsAlreadyExists(namespaces->Start(options).status()));
}

TEST_F(JobNamespacesTest, TheInitOfANamespaceIsDumpedFromOutside) {
  auto namespaces = JobNamespaces::Of(init_);
  ASSERT_TRUE(namespaces.ok()) << namespaces.status();
  EXPECT_FALSE(namespaces->entered());
}

TEST(JobNamespaces, OursAreNotEntered) {
  auto namespaces = JobNamespaces::Of(::getpid());
  ASSERT_TRUE(namespaces.ok()) << namespaces.status();
  EXPECT_FALSE(namespaces->entered());
  EXPECT_EQ(namespaces->Inside(::getpid()), ::getpid());
  EXPECT_EQ(namespaces->Outside(::getpid()).value_or(0), ::getpid());
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(dead, nullptr, 0), dead);
  const absl::Status refused = namespaces->Outside(dead).status();
  EXPECT_TRUE(absl::IsNotFound(refused)) << refused;
  EXPECT_EQ(refused.message(), absl::StrCat("process ", dead, " has ended"));
}

}  // namespace
}  // namespace rekindle::criu
