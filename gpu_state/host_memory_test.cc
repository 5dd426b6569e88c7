#include "gpu_state/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>

namespace rekindle::gpu {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// A process whose memory grows when it is told to.
class Growing {
 public:
  Growing() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      Grow(ends[1]);
    }
    ::close(ends[1]);
    socket_ = ends[0];
  }
  Growing(const Growing&) = delete;
  Growing& operator=(const Growing&) = delete;
  ~Growing() {
    ::close(socket_);
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }
  void GrowBy(uint64_t bytes) {
    ASSERT_EQ(::write(socket_, &bytes, sizeof bytes), static_cast<ssize_t>(sizeof bytes));
    ASSERT_EQ(::read(socket_, &bytes, sizeof bytes), static_cast<ssize_t>(sizeof bytes));
  }

 private:
  [[noreturn]] static void Grow(int socket) {
    uint64_t bytes;
    while (::read(socket, &bytes, sizeof bytes) == static_cast<ssize_t>(sizeof bytes)) {
      void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) break;
      std::memset(memory, 1, bytes);
      if (::write(socket, &bytes, sizeof bytes) < 0) break;
    }
    ::_exit(1);
  }

  pid_t pid_ = -1;
  int socket_ = -1;
};

class HostMemoryTest : public testing::Test {
 protected:
  absl::StatusOr<HostMemory::Reservation> Reserve(const Growing& process, uint64_t bytes) {
    const std::vector<GpuUse> uses = {{process.pid(), "GPU-a", bytes}};
    return memory_.Reserve({process.pid()}, uses);
  }

  std::map<pid_t, std::vector<HostLimit>> limits_;
  HostMemory memory_{[this](pid_t pid) { return limits_[pid]; }};
  Growing first_, second_;
};

TEST_F(HostMemoryTest, OwnBytesGrowWithTheProcess) {
  const uint64_t before = OwnBytes({first_.pid()});
  first_.GrowBy(8 * kMiB);
  EXPECT_GE(OwnBytes({first_.pid()}), before + 7 * kMiB);
  EXPECT_EQ(OwnBytes({}), 0u);
}

TEST_F(HostMemoryTest, WhatALimitDoesNotLeaveIsRefused) {
  limits_[first_.pid()] = {{"/jobs", 100 * kMiB}};
  EXPECT_TRUE(Reserve(first_, 100 * kMiB).ok());
  const auto refused = Reserve(first_, 100 * kMiB + 1).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("its limit (/jobs) leaves it 100.0 MiB"));
}

TEST_F(HostMemoryTest, TheDriversContextsCountForEachProcessOnEachGpu) {
  HostMemory memory([this](pid_t pid) { return limits_[pid]; }, /*context_bytes=*/10 * kMiB);
  const std::vector<GpuUse> uses = {{first_.pid(), "GPU-a", 30 * kMiB},
                                    {first_.pid(), "GPU-b", 30 * kMiB},
                                    {second_.pid(), "GPU-a", 20 * kMiB}};
  auto reserve = [&](uint64_t left) {
    for (const Growing* process : {&first_, &second_}) limits_[process->pid()] = {{"/jobs", left}};
    return memory.Reserve({first_.pid(), second_.pid()}, uses).status();
  };
  EXPECT_TRUE(reserve(110 * kMiB).ok());
  const absl::Status refused = reserve(110 * kMiB - 1);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("up to 110.0 MiB"));
}

TEST(CanBeWholeMoveTest, BeyondWhatContextsHaveSomethingMustHaveMoved) {
  EXPECT_TRUE(CanBeWholeMove(1024 * kMiB, 1, 0));
  EXPECT_FALSE(CanBeWholeMove(9 * 1024 * kMiB, 1, 1024 * kMiB - 1));
  EXPECT_TRUE(CanBeWholeMove(9 * 1024 * kMiB, 1, 1024 * kMiB));
  EXPECT_TRUE(CanBeWholeMove(9 * 1024 * kMiB, 9, 0));
}

TEST_F(HostMemoryTest, TheMachineIsALimitToo) {
  const auto refused = Reserve(first_, uint64_t{1} << 60).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("has to fit into host memory"));
}

TEST_F(HostMemoryTest, MovesUnderOneLimitCountForEachOtherUntilTheyHaveEnded) {
  for (const Growing* process : {&first_, &second_}) limits_[process->pid()] = {{"/jobs", 100 * kMiB}};
  {
    const auto moves = Reserve(first_, 60 * kMiB);
    ASSERT_TRUE(moves.ok()) << moves.status();
    const auto refused = Reserve(second_, 60 * kMiB).status();
    EXPECT_THAT(std::string(refused.message()), HasSubstr("leaves it 40.0 MiB beside 60.0 MiB"));
    EXPECT_TRUE(Reserve(second_, 40 * kMiB).ok());
  }
  EXPECT_TRUE(Reserve(second_, 60 * kMiB).ok());
}

TEST_F(HostMemoryTest, OtherLimitsAreOthers) {
  limits_[first_.pid()] = {{"/a", 100 * kMiB}};
  limits_[second_.pid()] = {{"/b", 100 * kMiB}};
  const auto moves = Reserve(first_, 60 * kMiB);
  EXPECT_TRUE(moves.ok() && Reserve(second_, 60 * kMiB).ok());
}

// What has arrived is gone from what the limit leaves: held back as well it would count twice.
TEST_F(HostMemoryTest, WhatHasArrivedIsHeldNoMore) {
  for (const Growing* process : {&first_, &second_}) limits_[process->pid()] = {{"/jobs", 100 * kMiB}};
  const auto moves = Reserve(first_, 60 * kMiB);
  ASSERT_TRUE(moves.ok()) << moves.status();
  ASSERT_NO_FATAL_FAILURE(first_.GrowBy(61 * kMiB));
  for (const Growing* process : {&first_, &second_}) limits_[process->pid()] = {{"/jobs", 40 * kMiB}};
  EXPECT_FALSE(Reserve(second_, 41 * kMiB).ok());
  const auto beside = Reserve(second_, 40 * kMiB);
  EXPECT_TRUE(beside.ok()) << beside.status();
}

}  // namespace
}  // namespace rekindle::gpu
