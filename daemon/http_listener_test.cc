#include "daemon/http_listener.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/file.h"
#include "base/unique_fd.h"
#include "daemon/bind_patience.h"

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

TEST(HttpListenerTest, WhatAnotherListensOnStaysItsOwn) {
  auto folder = TemporaryDirectory::Make("/tmp", "http-listener-test.");
  ASSERT_TRUE(folder.ok()) << folder.status();
  const std::string path = folder->path() + "/metrics.sock";
  auto first = ListenForHttp("unix:" + path, "--metrics");
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = ListenForHttp("unix:" + path, "--metrics");
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists) << second.status();
  EXPECT_TRUE(absl::StrContains(second.status().message(), "--metrics: listening on " + path));
  EXPECT_TRUE(PathExists(path));
  // As a dead one leaves it.
  first->Reset();
  ASSERT_TRUE(PathExists(path));
  EXPECT_TRUE(ListenForHttp("unix:" + path, "--metrics").ok());
}

TEST(HttpListenerTest, WhoHasAnAddressForAMomentLongerIsWaitedFor) {
  int looks = 0;
  EXPECT_TRUE(AwaitAddress([&] { return ++looks < 3; }));
  EXPECT_EQ(looks, 3);
  EXPECT_FALSE(AwaitAddress([] { return true; }));
}

}  // namespace
}  // namespace rekindle::daemon
