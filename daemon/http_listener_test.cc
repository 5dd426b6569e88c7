#include "daemon/http_listener.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {
namespace {

// Clients that don't block, as those of Node.js, are refused by what has no place for them.
TEST(HttpListenerTest, ManyMayConnectAtOnceByPath) {
  auto folder = TemporaryDirectory::Make("/tmp", "http-listener-test.");
  ASSERT_TRUE(folder.ok()) << folder.status();
  const std::string path = folder->path() + "/front.sock";
  auto listener = ListenForHttp("unix:" + path, "--functions-http");
  ASSERT_TRUE(listener.ok()) << listener.status();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 64; ++i) {
    UniqueFd& client = clients.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    ASSERT_EQ(::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0)
        << "client " << i << ": errno " << errno;
  }
}

}  // namespace
}  // namespace rekindle::daemon
