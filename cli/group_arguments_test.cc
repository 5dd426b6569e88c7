#include "cli/group_arguments.h"

#include <gtest/gtest.h>

namespace rekindle::cli {
namespace {

ParsedArguments Parse(const std::vector<std::string>& words) { return ParseArguments(words, "/home/me", {}); }

TEST(GroupArguments, MembersAreJobsOfDaemons) {
  auto named = ParseGroupMember("node-b:7443/train-1");
  ASSERT_TRUE(named.ok());
  EXPECT_EQ(named->host(), "node-b:7443");
  EXPECT_EQ(named->job(), "train-1");
  auto here = ParseGroupMember("4711");
  ASSERT_TRUE(here.ok());
  EXPECT_EQ(here->host(), "");
  EXPECT_EQ(here->pid(), 4711);
  auto target = ParseGroupMember("dns:///node-b:7443/12");
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(target->host(), "dns:///node-b:7443");
  EXPECT_EQ(target->pid(), 12);
  for (const char* bad :
       {"", "/", "/train", "node-b:7443/", "node-b/train", "node-b:74430/train", "0", "99999999999999"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseGroupMember(bad).status())) << bad;
  }
}

TEST(GroupArguments, Checkpoint) {
  ParsedArguments parsed = Parse({"group",
                                  "ckpt",
                                  "train:1",
                                  "--member",
                                  "a",
                                  "--member",
                                  "b:1/7",
                                  "--tcp-close",
                                  "--stop",
                                  "--freeze-limit",
                                  "2.5",
                                  "--label",
                                  "x=y",
                                  "--file-contents",
                                  "--ignore-path",
                                  "cache",
                                  "--gpu-lock-timeout",
                                  "3",
                                  "--track-path",
                                  "runs/**/events.*"});
  ASSERT_TRUE(parsed.status.ok()) << parsed.status;
  const auto& request = std::get<v1::CheckpointGroupRequest>(parsed.invocation.command);
  EXPECT_EQ(request.reference(), "train:1");
  ASSERT_EQ(request.members_size(), 2);
  EXPECT_EQ(request.members(0).job(), "a");
  EXPECT_EQ(request.members(1).host(), "b:1");
  EXPECT_TRUE(request.tcp_close());
  EXPECT_TRUE(request.stop());
  EXPECT_EQ(request.freeze_limit_seconds(), 2.5);
  EXPECT_EQ(request.labels().at("x"), "y");
  EXPECT_TRUE(request.file_contents());
  ASSERT_EQ(request.ignore_paths_size(), 1);
  EXPECT_EQ(request.ignore_paths(0), "/home/me/cache");
  EXPECT_EQ(request.gpu_lock_timeout_seconds(), 3);
  ASSERT_EQ(request.track_paths_size(), 1);
  EXPECT_EQ(request.track_paths(0), "/home/me/runs/**/events.*");
  EXPECT_FALSE(Parse({"group", "ckpt", "train:1"}).status.ok());
  EXPECT_FALSE(Parse({"group", "ckpt", "train:1", "--member", "a", "--freeze-limit", "-1"}).status.ok());
}

TEST(GroupArguments, RestoreAndResolve) {
  ParsedArguments restore = Parse({"group", "restore", "train:1", "--map", "b:1=c:1", "--log-dir", "logs"});
  ASSERT_TRUE(restore.status.ok()) << restore.status;
  const auto& request = std::get<v1::RestoreGroupRequest>(restore.invocation.command);
  EXPECT_EQ(request.host_map().at("b:1"), "c:1");
  EXPECT_EQ(request.log_directory(), "/home/me/logs");
  ParsedArguments here = Parse({"group", "restore", "train:1", "--map", "here=c:1", "--map", "b:1=here"});
  ASSERT_TRUE(here.status.ok()) << here.status;
  const auto& mapped = std::get<v1::RestoreGroupRequest>(here.invocation.command).host_map();
  EXPECT_EQ(mapped.at(""), "c:1");
  EXPECT_EQ(mapped.at("b:1"), "");
  EXPECT_EQ(std::get<v1::RestoreGroupRequest>(
                Parse({"group", "restore", "train:1", "--map", "=c:1"}).invocation.command)
                .host_map()
                .at(""),
            "c:1");
  for (const char* wrong : {"=", "b:1", "b:1=c"})
    EXPECT_FALSE(Parse({"group", "restore", "train:1", "--map", wrong}).status.ok()) << wrong;
  EXPECT_FALSE(request.has_rollback());
  restore = Parse({"group", "restore", "train:1", "--rollback", "append", "--ignore-path", "metrics"});
  ASSERT_TRUE(restore.status.ok()) << restore.status;
  const auto& rolling = std::get<v1::RestoreGroupRequest>(restore.invocation.command);
  EXPECT_TRUE(rolling.has_rollback());
  EXPECT_EQ(rolling.rollback().mode(), v1::Rollback::APPEND);
  ASSERT_EQ(rolling.rollback().ignore_paths_size(), 1);
  EXPECT_EQ(rolling.rollback().ignore_paths(0), "/home/me/metrics");
  restore = Parse({"group", "restore", "train:1", "--ignore-path", "metrics"});
  ASSERT_TRUE(restore.status.ok()) << restore.status;
  EXPECT_EQ(std::get<v1::RestoreGroupRequest>(restore.invocation.command).rollback().mode(),
            v1::Rollback::NONE);
  EXPECT_FALSE(Parse({"group", "restore", "train:1", "--rollback", "perhaps"}).status.ok());
  ParsedArguments resolve = Parse({"group", "resolve", "abc", "commit"});
  ASSERT_TRUE(resolve.status.ok()) << resolve.status;
  EXPECT_TRUE(std::get<v1::ResolveGroupRequest>(resolve.invocation.command).commit());
  EXPECT_FALSE(Parse({"group", "resolve", "abc", "perhaps"}).status.ok());
  EXPECT_FALSE(Parse({"group"}).status.ok());
}

}  // namespace
}  // namespace rekindle::cli
