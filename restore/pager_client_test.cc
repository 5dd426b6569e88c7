#include "restore/pager_client.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <thread>

#include "absl/status/status.h"
#include "base/file.h"

namespace rekindle::restore {
namespace {

class PagerClientTest : public testing::Test {
 protected:
  void SetUp() override {
    auto sockets = PacketSocketPair();
    ASSERT_TRUE(sockets.ok()) << sockets.status();
    client_.emplace(std::move(sockets->first));
    client_->CancelBy(cancel_.get());
    pager_ = std::move(sockets->second);
  }

  const UniqueFd cancel_{::eventfd(0, EFD_CLOEXEC)};
  std::optional<PagerClient> client_;
  UniqueFd pager_;  // its side
};

TEST_F(PagerClientTest, AnAnswer) {
  ASSERT_TRUE(SendPacket(pager_.get(), R"({"dropped": true})").ok());
  auto dropped = client_->DropWorkingSet("sha256:0");
  ASSERT_TRUE(dropped.ok()) << dropped.status();
  EXPECT_TRUE(*dropped);
}

TEST_F(PagerClientTest, APagerThatHangsIsWaitedForUntilTheCallIsCancelled) {
  std::thread canceller([&] {
    ASSERT_TRUE(ReceivePacket(pager_.get()).ok());  // and nothing is answered
    ::eventfd_write(cancel_.get(), 1);
  });
  const absl::Status status = client_->Ready("clone");
  canceller.join();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  // The answer to what was given up is not taken for another.
  SendPacket(pager_.get(), R"({"dropped": true})").IgnoreError();
  client_->CancelBy(-1);
  EXPECT_TRUE(absl::IsUnavailable(client_->DropWorkingSet("sha256:0").status()));
}

TEST_F(PagerClientTest, APagerThatHasDied) {
  pager_.Reset();
  EXPECT_FALSE(client_->Ready("clone").ok());
}

TEST_F(PagerClientTest, WithoutARuntimeDirectoryNoneRuns) {
  const auto store = TemporaryDirectory::Make("/tmp", "rekindle_pager_client_test.");
  ASSERT_TRUE(store.ok()) << store.status();
  const auto pagers = PagerClient::ConnectToAllRunning({store->path() + "/not-made", store->path()});
  ASSERT_TRUE(pagers.ok()) << pagers.status();
  EXPECT_TRUE(pagers->empty());
}

}  // namespace
}  // namespace rekindle::restore
