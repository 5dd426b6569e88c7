// What rekindle-criu-preload.so tells of a task when CRIU opens its list of areas.
#include "ckpt/page_filter.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/test_child.h"
#include "base/unix_socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::ckpt {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr size_t kAreaBytes = 1u << 20;

class PageFilterTest : public ::testing::Test {
 protected:
  // Its areas, which it has where we have them.
  void SetUp() override {
    plain_ = Map(PROT_READ | PROT_WRITE, MAP_PRIVATE);
    code_ = Map(PROT_READ | PROT_EXEC, MAP_PRIVATE);
    shared_ = Map(PROT_READ | PROT_WRITE, MAP_SHARED);
  }
  void TearDown() override {
    for (const AddressAndBytes& area : {plain_, code_, shared_})
      ::munmap(reinterpret_cast<void*>(area.address), area.bytes);
  }

  struct AddressAndBytes {
    uint64_t address = 0;
    size_t bytes = 0;
  };

  static AddressAndBytes Map(int protection, int kind) {
    // A page that can't be read on each side, or the kernel joins it with its neighbours.
    char* at = static_cast<char*>(
        ::mmap(nullptr, kAreaBytes + 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    EXPECT_NE(at, MAP_FAILED);
    EXPECT_EQ(::mmap(at + 4096, kAreaBytes, protection, kind | MAP_ANONYMOUS | MAP_FIXED, -1, 0), at + 4096);
    return {reinterpret_cast<uint64_t>(at) + 4096, kAreaBytes};
  }

  // As the library tells them in a CRIU that opens `name` in the task's folder.
  std::vector<PageFilterRange> Told(pid_t task, const char* name) const {
    const UniqueFd listener = ListenAt(absl::StrCat(folder_.path(), "/", PAGE_FILTER_SOCKET)).value();
    const pid_t criu = ::fork();
    if (criu == 0) {
      void* library = ::dlopen(REKINDLE_CRIU_PRELOAD, RTLD_NOW);
      if (library == nullptr || ::chdir(folder_.path().c_str()) != 0) ::_exit(2);
      const auto open = reinterpret_cast<int (*)(int, const char*, int, ...)>(::dlsym(library, "openat64"));
      const int proc = ::open(absl::StrCat("/proc/", task).c_str(), O_PATH | O_DIRECTORY);
      char byte;
      // It is opened all the same.
      ::_exit(open != nullptr && ::read(open(proc, name, O_RDONLY), &byte, 1) == 1 ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(criu, &status, 0), criu);
    EXPECT_EQ(status, 0);
    std::vector<PageFilterRange> told;
    ::fcntl(listener.get(), F_SETFL, O_NONBLOCK);  // who has said something has connected by now
    const UniqueFd connection(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    PageFilterRange range;
    while (connection.valid() && ::recv(connection.get(), &range, sizeof range, MSG_WAITALL) == sizeof range)
      told.push_back(range);
    ::unlink(absl::StrCat(folder_.path(), "/", PAGE_FILTER_SOCKET).c_str());
    return told;
  }

  static ::testing::Matcher<PageFilterRange> Is(const AddressAndBytes& area) {
    return ::testing::AllOf(::testing::Field(&PageFilterRange::start, area.address),
                            ::testing::Field(&PageFilterRange::end, area.address + area.bytes),
                            ::testing::Field(&PageFilterRange::ahead, 1u));
  }

  AddressAndBytes plain_, code_, shared_;
  TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "rk_page_filter_test.").value();
};

TEST_F(PageFilterTest, TellsTheAreasOfWhichItWillTakePages) {
  TestChild task;
  const std::vector<PageFilterRange> told = Told(task.pid(), "smaps");
  EXPECT_THAT(told, Contains(Is(plain_)));
  EXPECT_THAT(told, Not(Contains(Is(code_))));
  EXPECT_THAT(told, Not(Contains(Is(shared_))));
  for (const PageFilterRange& area : told) EXPECT_EQ(area.pid, static_cast<uint64_t>(task.pid()));
}

TEST_F(PageFilterTest, OtherFilesSayNothing) {
  TestChild task;
  EXPECT_THAT(Told(task.pid(), "maps"), IsEmpty());
  EXPECT_THAT(Told(task.pid(), "smaps_rollup"), IsEmpty());
}

// Its requests write to memory until CRIU has waited for them.
TEST_F(PageFilterTest, NothingIsToldOfATaskWithAsynchronousRequests) {
  TestChild task([] {
    aio_context_t context = 0;
    return ::syscall(SYS_io_setup, 16, &context) == 0;
  });
  ASSERT_TRUE(task.prepared());
  EXPECT_THAT(Told(task.pid(), "smaps"), IsEmpty());
}

}  // namespace
}  // namespace rekindle::ckpt
