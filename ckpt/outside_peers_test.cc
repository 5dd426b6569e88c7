#include "ckpt/outside_peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/test_child.h"
#include "base/unique_fd.h"
#include "base/unix_socket.h"

namespace rekindle::ckpt {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct PairOfSockets {
  PairOfSockets() {
    int made[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, made), 0);
    ours = UniqueFd(made[0]);
    theirs = UniqueFd(made[1]);
  }
  UniqueFd ours, theirs;
};

std::string Descriptor(int fd, pid_t pid) { return absl::StrCat("descriptor ", fd, " of process ", pid); }

TEST(OutsidePeers, NamesTheProcessAtTheOtherEnd) {
  PairOfSockets pair;
  const TestChild child([&] { return ::close(pair.ours.get()) == 0; });
  ASSERT_TRUE(child.prepared());
  const int fd = pair.theirs.get();
  pair.theirs.Reset();
  EXPECT_THAT(DescribeOutsidePeers({child.pid()}, 0),
              HasSubstr(absl::StrCat(Descriptor(fd, child.pid()), " (ckpt_test) leads to process ",
                                     ::getpid(), " (ckpt_test)")));
  constexpr uid_t kSomebody = 4242;
  EXPECT_THAT(DescribeOutsidePeers({child.pid()}, kSomebody), HasSubstr("leads to another user's process"));
}

TEST(OutsidePeers, SaysWhatDoesWithoutTorchsManager) {
  PairOfSockets pair;
  const TestChild manager(
      [&] { return ::close(pair.ours.get()) == 0 && ::prctl(PR_SET_NAME, "torch_shm_manager") == 0; });
  ASSERT_TRUE(manager.prepared());
  pair.theirs.Reset();
  const TestChild job;
  pair.ours.Reset();
  ASSERT_TRUE(job.prepared());
  const std::string told = DescribeOutsidePeers({job.pid()}, 0);
  EXPECT_THAT(told, HasSubstr(absl::StrCat("leads to process ", manager.pid(), " (torch_shm_manag)")));
  EXPECT_THAT(told, HasSubstr("set_sharing_strategy('file_descriptor')"));
}

TEST(OutsidePeers, NamesWhatItIsKnownBy) {
  const TemporaryDirectory folder = TemporaryDirectory::Make("/tmp", "rk_peers_test.").value();
  const std::string path = folder.path() + "/socket";
  const UniqueFd listener = ListenAt(path).value();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_EQ(path.copy(address.sun_path, sizeof address.sun_path - 1), path.size());
  UniqueFd client(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const UniqueFd accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(accepted.valid());
  const TestChild child([&] { return ::close(accepted.get()) == 0; });
  ASSERT_TRUE(child.prepared());
  const int fd = client.get();
  client.Reset();
  const std::string told = DescribeOutsidePeers({child.pid()}, 0);
  EXPECT_THAT(told, HasSubstr(Descriptor(fd, child.pid())));
  EXPECT_THAT(told, HasSubstr(absl::StrCat(", which has it as ", path)));
}

TEST(OutsidePeers, HasNothingToSayWhereTheJobHasBothEnds) {
  const PairOfSockets pair;
  const TestChild child;
  EXPECT_THAT(DescribeOutsidePeers({::getpid(), child.pid()}, 0),
              Not(HasSubstr(absl::StrCat("descriptor ", pair.ours.get(), " of"))));
  EXPECT_EQ(DescribeOutsidePeers({}, 0), "");
}

}  // namespace
}  // namespace rekindle::ckpt
