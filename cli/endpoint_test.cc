#include "cli/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <set>
#include <string>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "cli/transfer_commands.h"

namespace rekindle::cli {
namespace {

TEST(EndpointTest, AHostIsASocketOrAPort) {
  for (const char* host : {"unix:///run/d.sock", "unix:d.sock", "node-b:7443", "[::1]:7443"})
    EXPECT_TRUE(CheckHost(host).ok()) << host;
  GlobalOptions options;
  Surroundings surroundings;
  for (const char* host : {"localhost", "localhost:99999", "::1", "/run/d.sock"}) {
    options.host = host;
    const absl::Status named = ChooseEndpoint(options, surroundings).status();
    EXPECT_TRUE(absl::IsInvalidArgument(named)) << host;
    EXPECT_TRUE(absl::StartsWith(named.message(), "--host: ")) << named;
    options.host.reset();
    surroundings.host = host;
    const absl::Status set = ChooseEndpoint(options, surroundings).status();
    EXPECT_TRUE(absl::IsInvalidArgument(set)) << host;
    EXPECT_TRUE(absl::StartsWith(set.message(), "$REKINDLE_HOST: ")) << set;
  }
}

TEST(EndpointTest, ADaemonThatDoesNotAnswer) {
  Surroundings surroundings;
  surroundings.root = true;
  surroundings.answers = [](const std::string&) { return false; };
  std::set<std::string> there;
  surroundings.exists = [&there](const std::string& path) { return there.contains(path); };
  absl::StatusOr<Endpoint> chosen = ChooseEndpoint({}, surroundings);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->store, kDefaultStore);
  EXPECT_EQ(chosen->warning, "");

  there = {UnixSocketPath(kDefaultHost)};
  chosen = ChooseEndpoint({}, surroundings);
  EXPECT_TRUE(absl::IsUnavailable(chosen.status())) << chosen.status();
  EXPECT_THAT(std::string(chosen.status().message()), ::testing::HasSubstr("mount its folder"));
  GlobalOptions without;
  without.no_daemon = true;
  chosen = ChooseEndpoint(without, surroundings);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->warning, "");

  there.insert(kDefaultStore);  // the folder alone: systemd makes it
  EXPECT_TRUE(absl::IsUnavailable(ChooseEndpoint({}, surroundings).status()));
  there.insert(absl::StrCat(kDefaultStore, "/FORMAT"));
  chosen = ChooseEndpoint({}, surroundings);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->store, kDefaultStore);
  EXPECT_THAT(chosen->warning, ::testing::HasSubstr("does not answer"));
}

TEST(EndpointTest, FunctionsLiveInTheDaemon) {
  Surroundings surroundings;
  surroundings.root = true;
  surroundings.answers = [](const std::string&) { return true; };
  EXPECT_TRUE(CheckHasFunctions(*ChooseEndpoint({}, surroundings)).ok());
  const auto why_not = [&](const GlobalOptions& options) {
    return std::string(CheckHasFunctions(*ChooseEndpoint(options, surroundings)).message());
  };
  surroundings.store = "/srv/store";
  EXPECT_THAT(why_not({}), ::testing::HasSubstr("because of $REKINDLE_STORE: unset that"));
  GlobalOptions named;
  named.store = "/srv/store";
  EXPECT_THAT(why_not(named), ::testing::HasSubstr("because of --store: leave that out"));
  GlobalOptions without;
  without.no_daemon = true;
  EXPECT_THAT(why_not(without), ::testing::HasSubstr("because of --no-daemon: leave that out"));
  named.store.reset();
  named.host = kDefaultHost;
  EXPECT_EQ(why_not(named), "");
  surroundings.store.clear();
  surroundings.answers = [](const std::string&) { return false; };
  surroundings.exists = [](const std::string&) { return false; };
  EXPECT_THAT(why_not({}), ::testing::HasSubstr("answers at unix:///run/rekindle/rekindled.sock"));
}

TEST(EndpointTest, TheStoreOfADaemonThatHasEnded) {
  Surroundings surroundings;
  surroundings.root = true;
  surroundings.answers = [](const std::string&) { return false; };
  std::set<std::string> there;
  surroundings.exists = [&there](const std::string& path) { return there.contains(path); };
  surroundings.last_store = [](const std::string& socket) {
    return socket == UnixSocketPath(kDefaultHost) ? "/data/rekindle" : "";
  };
  EXPECT_TRUE(absl::IsUnavailable(ChooseEndpoint({}, surroundings).status()));  // not mounted, say
  there = {"/data/rekindle/FORMAT"};
  absl::StatusOr<Endpoint> chosen = ChooseEndpoint({}, surroundings);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->store, "/data/rekindle");
  EXPECT_THAT(chosen->warning, ::testing::HasSubstr("on its store /data/rekindle"));
  surroundings.last_store = [](const std::string&) { return kDefaultStore; };
  chosen = ChooseEndpoint({}, surroundings);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->store, kDefaultStore);
  EXPECT_EQ(chosen->warning, "");
}

TEST(ArgumentsTest, TheVersionAsJson) {
  EXPECT_EQ(ParseArguments({"--version"}, "/", {}).help.substr(0, 9), "rekindle ");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--json", "--version"}, {"--version", "--json"}})
    EXPECT_EQ(ParseArguments(words, "/", {}).help.substr(0, 11), "{\"version\":");
}

TEST(ArgumentsTest, ThatJsonIsWantedIsKnownWhateverElseIsWrong) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--json", "ckpt", "x", "-t"},
                                                {"ckpt", "x", "-t", "a:1", "--no-such", "--json"}}) {
    const ParsedArguments parsed = ParseArguments(words, "/", {});
    EXPECT_TRUE(absl::IsInvalidArgument(parsed.status)) << parsed.status;
    EXPECT_TRUE(parsed.invocation.globals.json);
  }
  EXPECT_FALSE(ParseArguments({"ckpt", "x", "-t"}, "/", {}).invocation.globals.json);
}

class CopyToTest : public testing::Test {
 protected:
  // Where a copy to `to` goes.
  absl::StatusOr<std::string> To(const std::string& to, bool tls = false) const {
    std::vector<std::string> words = {"copy", "train:7", "--to", to};
    if (tls) words.insert(words.end(), {"--tls-ca", "a", "--tls-cert", "b", "--tls-key", "c"});
    const ParsedArguments parsed = ParseArguments(words, folder_->path(), {});
    if (!parsed.status.ok()) return parsed.status;
    return std::get<CopyImage>(parsed.invocation.command).to;
  }

  const absl::StatusOr<TemporaryDirectory> folder_ = TemporaryDirectory::Make("/tmp", "copy-to-test.");
};

TEST_F(CopyToTest, FoldersAndDaemons) {
  ASSERT_EQ(::mkdir((folder_->path() + "/there").c_str(), 0700), 0);
  EXPECT_EQ(*To("node2:7443", true), "node2:7443");
  EXPECT_EQ(*To("unix:///run/d.sock"), "unix:///run/d.sock");
  for (const bool tls : {false, true}) {  // of the store that it comes from
    EXPECT_EQ(*To("/store", tls), "/store");
    EXPECT_EQ(*To("./new", tls), folder_->path() + "/./new");
    EXPECT_EQ(*To("stores/new", tls), folder_->path() + "/stores/new");
    EXPECT_EQ(*To("./a:b", tls), folder_->path() + "/./a:b");
  }
  EXPECT_EQ(*To("there"), folder_->path() + "/there");
}

TEST_F(CopyToTest, AMachineWithoutAPortIsNoFolder) {
  ASSERT_EQ(::mkdir((folder_->path() + "/there").c_str(), 0700), 0);
  for (const absl::Status& refused :
       {To("node2", true).status(), To("there", true).status(), To("node2").status()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), ":PORT")) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), "./")) << refused;
  }
  for (const char* to : {"node2:dir", "node2:99999", "node2:"})
    EXPECT_TRUE(absl::IsInvalidArgument(To(to).status())) << to;
}

TEST_F(CopyToTest, ObjectStores) {
  const auto parsed = [](const std::vector<std::string>& words) { return ParseArguments(words, "/", {}); };
  const auto bucket = [&](const std::string& option, const std::string& place) {
    return std::get<CopyImage>(parsed({"copy", "train", option, place}).invocation.command).bucket;
  };
  for (const char* option : {"--to", "--from"}) {
    EXPECT_EQ(bucket(option, "rclone:s3:bucket/folder"), "s3:bucket/folder");
    EXPECT_EQ(bucket(option, "rclone::local:/mnt"), ":local:/mnt");
    EXPECT_EQ(bucket(option, "rclone:/mnt"), "/mnt");
    EXPECT_EQ(bucket(option, "rclone:7443"), "");  // a machine of that name
    EXPECT_EQ(bucket(option, "./rclone:s3:x"), "");
  }
  const std::string there = "rclone:s3:bucket";
  for (const std::vector<std::string>& words : {
           std::vector<std::string>{"copy", "train"},
           {"copy", "train", "--to", there, "--from", "/store"},
           {"copy", "train:7", "--to", there, "-t", "other:1"},
           {"copy", "train:7", "--to", there, "--replace"},
           {"copy", "train", "--from", there, "--follow"},
           {"copy", "train@sha256:12", "--from", there},
       }) {
    EXPECT_TRUE(absl::IsInvalidArgument(parsed(words).status)) << words[2 % words.size()];
  }
  EXPECT_TRUE(parsed({"copy", "train:7", "--from", there, "-t", "other:1", "--replace"}).status.ok());
  EXPECT_TRUE(parsed({"copy", "train", "--to", there, "--follow", "--keep", "2"}).status.ok());
}

}  // namespace
}  // namespace rekindle::cli
