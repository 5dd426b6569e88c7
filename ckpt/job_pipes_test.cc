#include "ckpt/job_pipes.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/test_child.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::ckpt {
namespace {

using ::testing::SizeIs;

struct NamedPipe {
  NamedPipe() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read = UniqueFd(ends[0]);
    write = UniqueFd(ends[1]);
  }
  std::string name() const {
    struct stat info {};
    EXPECT_EQ(::fstat(read.get() >= 0 ? read.get() : write.get(), &info), 0);
    return absl::StrCat("pipe:[", info.st_ino, "]");
  }
  UniqueFd read, write;
};

// A child of the caller that has these as its descriptors 0 and 1, and no others, when this returns.
bool StartsWith(int input, int output) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return false;
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(input, 0);
    ::dup2(output, 1);
    ::close_range(2, ~0U, 0);
    for (;;) ::pause();
  }
  ::close(ends[1]);
  char none;
  const bool closed = ::read(ends[0], &none, 1) == 0;
  ::close(ends[0]);
  return child > 0 && closed;
}

const StdioDescriptor& Slot(const JobInspection& job, int fd) {
  for (const StdioDescriptor& slot : job.stdio) {
    if (slot.fd == fd) return slot;
  }
  ADD_FAILURE() << "no descriptor " << fd;
  return job.stdio.front();
}

// As `exec > >(tee log)`: between shell and tee is a pipe of the job, behind tee one to whoever has started
// it.
TEST(JobPipesTest, APipeOfTheJobStaysAndTheOneBehindItIsReplaced) {
  NamedPipe between, out;
  const std::string inside = between.name(), outside = out.name();
  TestChild job([&] {
    const int null = ::open("/dev/null", O_RDONLY);
    if (!StartsWith(between.read.get(), out.write.get())) return false;
    const bool has =
        ::dup2(null, 0) == 0 && ::dup2(between.write.get(), 1) == 1 && ::dup2(between.write.get(), 2) == 2;
    for (UniqueFd* end : {&between.read, &between.write, &out.read, &out.write}) end->Reset();
    return has;
  });
  ASSERT_TRUE(job.prepared());
  between.read.Reset();
  between.write.Reset();
  const auto seen = InspectJob(job.pid(), 0, 0);
  ASSERT_TRUE(seen.ok()) << seen.status();
  ASSERT_THAT(seen->processes, SizeIs(2));
  EXPECT_EQ(Slot(*seen, 1).path, inside);
  EXPECT_EQ(Slot(*seen, 1).resource, outside);
  EXPECT_EQ(Slot(*seen, 2).path, inside);
  EXPECT_EQ(Slot(*seen, 2).resource, "");
}

TEST(JobPipesTest, AnEndThatOthersHaveTooIsNotTheJobsAlone) {
  NamedPipe leaked;
  const std::string name = leaked.name();
  TestChild job([&] { return ::dup2(leaked.write.get(), 1) == 1; });
  ASSERT_TRUE(job.prepared());
  {
    const auto seen = InspectJob(job.pid(), 0, 0);
    ASSERT_TRUE(seen.ok()) << seen.status();
    EXPECT_EQ(Slot(*seen, 1).resource, name) << "we read from it";
  }
  leaked.read.Reset();
  leaked.write.Reset();
  // It has the end for reading, as a program has that catches its own output.
  const auto seen = InspectJob(job.pid(), 0, 0);
  ASSERT_TRUE(seen.ok()) << seen.status();
  EXPECT_EQ(Slot(*seen, 1).resource, "");
}

TEST(JobPipesTest, AnInputThatHasEndedStaysWithWhatIsLeftInIt) {
  NamedPipe input;
  const std::string name = input.name();
  TestChild job([&] {
    input.write.Reset();
    return ::dup2(input.read.get(), 0) == 0;
  });
  ASSERT_TRUE(job.prepared());
  ASSERT_EQ(::write(input.write.get(), "left", 4), 4);
  {
    const auto seen = InspectJob(job.pid(), 0, 0);
    ASSERT_TRUE(seen.ok()) << seen.status();
    EXPECT_EQ(Slot(*seen, 0).resource, name) << "more may come";
  }
  input.write.Reset();
  const auto seen = InspectJob(job.pid(), 0, 0);
  ASSERT_TRUE(seen.ok()) << seen.status();
  EXPECT_EQ(Slot(*seen, 0).resource, "");
}

}  // namespace
}  // namespace rekindle::ckpt
