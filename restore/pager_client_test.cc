#include "restore/pager_client.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "base/file.h"
#include "base/status.h"
#include "base/status_json.h"

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

// The pager says `answer` to what `ask` asks it.
template <typename Ask>
absl::Status Answered(int pager, const char* answer, const Ask& ask) {
  EXPECT_TRUE(SendPacket(pager, answer).ok());
  return ask();
}

TEST_F(PagerClientTest, WhatAPagerOfAnotherBuildSaysOtherwiseIsAnErrorOfTheCall) {
  const auto fill = [this] { return client_->Fill("clone").status(); };
  const auto stats = [this] { return client_->Stats().status(); };
  const auto attach = [this] { return client_->Attach({}, cancel_.get(), cancel_.get(), -1).status(); };
  const auto prefill = [this] { return client_->Prefill("clone", {}, {}).status(); };
  const auto dropped = [this] { return client_->DropWorkingSet("sha256:0").status(); };
  const auto resize = [this] { return client_->Resize(1).status(); };
  const auto ready = [this] { return client_->Ready("clone"); };
  const std::vector<std::tuple<const char*, const char*, std::function<absl::Status()>>> answers = {
      {"a value of another type", R"({"complete": "yes"})", fill},
      {"a value that has to be there", "{}", fill},
      {"a number", R"({"serving": "many"})", stats},
      {"a part", R"({"cache": 7})", stats},
      {"a number in a part", R"({"cache": {"hits": []}})", stats},
      {"a truth", R"({"cache": {"warming": 0}})", stats},
      {"attach", R"({"pages": {}})", attach},
      {"prefill", R"({"pages": 1, "seconds": "0.1"})", prefill},
      {"drop", R"({"dropped": 1})", dropped},
      {"resize", R"({"cache_bytes": null})", resize},
      {"no object", "[1]", dropped},
      {"an error's text", R"({"error": 1})", ready},
      {"an error's code", R"({"error": "no", "code": "five"})", ready},
      {"an error that is none", R"({"error": "no", "code": 0})", ready},
      {"no JSON", "{", ready},
  };
  for (const auto& [what, answer, ask] : answers) {
    const absl::Status status = Answered(pager_.get(), answer, ask);
    EXPECT_TRUE(absl::IsInternal(status)) << what << ": " << status;
  }
  // What it leaves out or adds is none.
  EXPECT_TRUE(Answered(pager_.get(), R"({"images": 3, "new": []})", stats).ok());
}

TEST_F(PagerClientTest, WhatAnErrorWasMadeOfComesBesideItsWords) {
  const auto ready = [this] { return client_->Ready("clone"); };
  nlohmann::json answer;
  PutStatus(WithMessage(ErrnoStatus(ENOENT, "opening /x"), "it has gone"), &answer);
  EXPECT_EQ(ErrnoOf(Answered(pager_.get(), answer.dump().c_str(), ready)), ENOENT);
  // An older one's words are all there is.
  EXPECT_EQ(ErrnoOf(Answered(pager_.get(), R"({"error": "opening /x: No such file or directory", "code": 5})",
                             ready)),
            ENOENT);
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
