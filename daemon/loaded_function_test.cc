#include "daemon/loaded_function.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {
namespace {

constexpr unsigned kHeld = 3;

// A process that has this descriptor and no other, for as long as this lives.
class Holder {
 public:
  explicit Holder(const UniqueFd& held) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(held.get(), kHeld);
      ::close(ready[0]);
      ::dup2(ready[1], kHeld + 1);
      ::syscall(SYS_close_range, kHeld + 2, ~0U, 0);
      ::close(kHeld + 1);
      for (;;) ::pause();
    }
    ::close(ready[1]);
    char byte;
    EXPECT_EQ(::read(ready[0], &byte, 1), 0);
    ::close(ready[0]);
  }
  ~Holder() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

UniqueFd Socket(int domain, int type) { return UniqueFd(::socket(domain, type | SOCK_CLOEXEC, 0)); }

// On the loopback interface, listening if it is TCP.
struct Server {
  explicit Server(int type) : socket(Socket(AF_INET, type)) {
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(socket.get(), raw(), size), 0);
    if (type == SOCK_STREAM) {
      EXPECT_EQ(::listen(socket.get(), 1), 0);
    }
    EXPECT_EQ(::getsockname(socket.get(), raw(), &size), 0);
  }
  sockaddr* raw() { return reinterpret_cast<sockaddr*>(&address); }
  std::string text() const { return absl::StrCat("127.0.0.1:", ntohs(address.sin_port)); }

  UniqueFd socket;
  sockaddr_in address{};
};

TEST(ConnectionToOthers, OverTheInternet) {
  for (const int type : {SOCK_STREAM, SOCK_DGRAM}) {
    Server server(type);
    const UniqueFd client = Socket(AF_INET, type);
    EXPECT_EQ(ConnectionToOthers({Holder(client).pid()}), std::nullopt);
    ASSERT_EQ(::connect(client.get(), server.raw(), sizeof server.address), 0);
    EXPECT_EQ(ConnectionToOthers({Holder(client).pid()}), server.text());
    EXPECT_EQ(ConnectionToOthers({Holder(server.socket).pid()}), std::nullopt);
  }
}

TEST(ConnectionToOthers, OverUnixSockets) {
  int stream[2], datagrams[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, stream), 0);
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, datagrams), 0);
  const UniqueFd end(stream[0]), other(stream[1]), sender(datagrams[0]), receiver(datagrams[1]);
  const Holder holder(end);
  EXPECT_EQ(ConnectionToOthers({holder.pid()}), "a Unix socket");
  // Made by this process, which has the other end.
  EXPECT_EQ(ConnectionToOthers({holder.pid(), ::getpid()}), std::nullopt);
  EXPECT_EQ(ConnectionToOthers({Holder(sender).pid()}), std::nullopt);
}

TEST(CheckLoadedFunction, WhoIsCalledInEachCopyMayHaveConnections) {
  Server server(SOCK_STREAM);
  const UniqueFd client = Socket(AF_INET, SOCK_STREAM);
  ASSERT_EQ(::connect(client.get(), server.raw(), sizeof server.address), 0);
  const Holder holder(client);
  const absl::Status refused = CheckLoadedFunction(holder.pid(), /*has_after_restore=*/false);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), server.text())) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "register_after_restore")) << refused;
  EXPECT_TRUE(CheckLoadedFunction(holder.pid(), /*has_after_restore=*/true).ok());
}

}  // namespace
}  // namespace rekindle::daemon
