#include "restore/pager_guard.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>

#include "base/packet_socket.h"
#include "base/unique_fd.h"
#include "dedup_store/store.h"

namespace rekindle::restore {
namespace {

using store::kPageSize;

// A process whose one page is missing, and which ends with 0 if it finds zeros there. Its userfaultfd goes
// out over `socket`.
int ReadMissingPage(int socket) {
  const int fd = static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC));
  uffdio_api api{UFFD_API, 0, 0};
  void* page = ::mmap(nullptr, kPageSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  uffdio_register memory{};
  memory.range = {reinterpret_cast<uintptr_t>(page), kPageSize};
  memory.mode = UFFDIO_REGISTER_MODE_MISSING;
  if (fd < 0 || ::ioctl(fd, UFFDIO_API, &api) != 0 || ::ioctl(fd, UFFDIO_REGISTER, &memory) != 0) return 3;
  if (!SendPacket(socket, "userfaultfd", {&fd, 1}).ok()) return 4;
  ::close(fd);
  return *static_cast<volatile char*>(page) == 0 ? 0 : 5;
}

pid_t Start(const std::function<int()>& child) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(child());
  return pid;
}

// Nothing comes after this: all others that had the other end have closed it.
bool IsAtEnd(int fd) {
  char byte;
  return ::read(fd, &byte, 1) == 0;
}

class PagerGuardTest : public testing::Test {
 protected:
  void SetUp() override {
    const UniqueFd asked(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC)));
    if (!asked.valid()) GTEST_SKIP() << "no userfaultfd: " << std::strerror(errno);
    keeper_ = *PacketSocketPair();
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    pipe_ = {UniqueFd(ends[0]), UniqueFd(ends[1])};
    auto channel = *PacketSocketPair();
    job_ = Start([&] {
      keeper_ = {};
      pipe_ = {};
      return ReadMissingPage(channel.second.get());
    });
    channel.second.Reset();
    auto packet = ReceivePacket(channel.first.get());
    ASSERT_TRUE(packet.ok() && packet->has_value()) << "the job can't have missing memory";
    userfaultfd_ = std::move((*packet)->descriptors.at(0));
  }

  // It has all the descriptors that this process has, and the guard; the test keeps what the service and the
  // sandbox's init would.
  void StartPager(const std::function<void()>& end) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    UniqueFd from(ready[0]), to(ready[1]);
    pager_ = Start([&] {
      keeper_.second.Reset();
      pipe_.first.Reset();
      from.Reset();
      if (!StartPagerGuard().ok()) return 1;
      to.Reset();
      end();
      return 0;
    });
    to.Reset();
    ASSERT_TRUE(IsAtEnd(from.get()));
    keeper_.first.Reset();
    pipe_.second.Reset();
    userfaultfd_.Reset();
  }

  void ExpectHeldUntilTheKeeperCloses() {
    EXPECT_TRUE(IsAtEnd(pipe_.first.get())) << "closed: not the guard's business";
    EXPECT_TRUE(IsAtEnd(keeper_.second.get())) << "told";
    int status = 0;
    EXPECT_EQ(::waitpid(job_, &status, WNOHANG), 0) << "the job went on without its page";
    // As a sandbox's init does it.
    ::kill(job_, SIGKILL);
    EXPECT_EQ(::waitpid(job_, &status, 0), job_);
    EXPECT_TRUE(WIFSIGNALED(status)) << "the job went on without its page";
    keeper_.second.Reset();
  }

  std::pair<UniqueFd, UniqueFd> keeper_, pipe_;
  UniqueFd userfaultfd_;
  pid_t job_ = 0, pager_ = 0;
};

TEST_F(PagerGuardTest, HoldsMissingMemoryOfAPagerThatWasKilled) {
  StartPager([] { ::pause(); });
  ASSERT_EQ(::kill(pager_, SIGKILL), 0);
  ASSERT_EQ(::waitpid(pager_, nullptr, 0), pager_);
  ExpectHeldUntilTheKeeperCloses();
}

TEST_F(PagerGuardTest, HoldsItTooWhenThePagerEndsByItself) {
  StartPager([] {});
  ASSERT_EQ(::waitpid(pager_, nullptr, 0), pager_);
  ExpectHeldUntilTheKeeperCloses();
}

// The init of its sandbox was killed as well: it closes first, and its processes end a moment later.
TEST_F(PagerGuardTest, HoldsItWhileAProcessLives) {
  StartPager([] { ::pause(); });
  keeper_.second.Reset();
  ASSERT_EQ(::kill(pager_, SIGKILL), 0);
  ASSERT_EQ(::waitpid(pager_, nullptr, 0), pager_);
  EXPECT_TRUE(IsAtEnd(pipe_.first.get()));
  int status = 0;
  EXPECT_EQ(::waitpid(job_, &status, WNOHANG), 0) << "the job went on without its page";
  ::kill(job_, SIGKILL);
  EXPECT_EQ(::waitpid(job_, &status, 0), job_);
  EXPECT_TRUE(WIFSIGNALED(status)) << "the job went on without its page";
}

TEST_F(PagerGuardTest, EndsWhenNothingIsLeft) {
  // The guard comes to the test when the pager has ended.
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  StartPager([] { ::pause(); });
  ::kill(job_, SIGKILL);
  ASSERT_EQ(::waitpid(job_, nullptr, 0), job_);
  keeper_.second.Reset();
  ASSERT_EQ(::kill(pager_, SIGKILL), 0);
  ASSERT_EQ(::waitpid(pager_, nullptr, 0), pager_);
  int status = 0;
  EXPECT_GT(::waitpid(-1, &status, 0), 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
}

}  // namespace
}  // namespace rekindle::restore
