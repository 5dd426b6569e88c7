#include "base/socket_descriptors.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>

#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle {
namespace {

TEST(SocketDescriptorsTest, OfAProcess) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd one(pair[0]), other(pair[1]), file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::map<int, uint64_t> found;
  ForEachSocketOf(::getpid(),
                  [&](int descriptor, uint64_t inode) { return found[descriptor] = inode, true; });
  struct stat info;
  ASSERT_EQ(::fstat(one.get(), &info), 0);
  EXPECT_EQ(found[one.get()], info.st_ino);
  EXPECT_TRUE(found.contains(other.get()));
  EXPECT_FALSE(found.contains(file.get()));
  size_t calls = 0;
  ForEachSocketOf(::getpid(), [&](int, uint64_t) { return ++calls, false; });
  EXPECT_EQ(calls, 1u);
  ForEachSocketOf(-1, [](int, uint64_t) { return ADD_FAILURE(), false; });
}

TEST(SocketDescriptorsTest, InodeOfALink) {
  EXPECT_EQ(SocketInode("socket:[4711]"), 4711u);
  for (const char* other : {"socket:[", "socket:[]", "socket:[x]", "pipe:[4711]", "/tmp/socket:[4711]", ""})
    EXPECT_FALSE(SocketInode(other)) << other;
}

}  // namespace
}  // namespace rekindle
