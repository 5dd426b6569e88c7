#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "cli/arguments.h"
#include "cli/durations.h"

namespace rekindle::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

template <typename Request>
Request Parsed(const std::vector<std::string>& arguments) {
  ParsedArguments parsed = ParseArguments(arguments, "/home/me", {});
  EXPECT_TRUE(parsed.status.ok()) << parsed.status;
  const Request* request = std::get_if<Request>(&parsed.invocation.command);
  EXPECT_NE(request, nullptr) << "another command";
  return request ? *request : Request();
}

void ExpectRefused(const std::vector<std::string>& arguments, const std::string& words) {
  ParsedArguments parsed = ParseArguments(arguments, "/home/me", {});
  EXPECT_EQ(parsed.status.code(), absl::StatusCode::kInvalidArgument) << arguments.back();
  EXPECT_THAT(std::string(parsed.status.message()), HasSubstr(words));
}

TEST(FunctionArgumentsTest, DeploySaysAllThatAFunctionIs) {
  auto request = Parsed<v1::DeployFunctionRequest>({"fn",          "deploy",        "resize",
                                                    "--runtime",   "python3.11",    "--handler",
                                                    "app.handler", "--code",        "code",
                                                    "--deps",      "numpy,PIL",     "--layer",
                                                    "/opt/a",      "--layer",       "b",
                                                    "--memory",    "512M",          "--timeout",
                                                    "30s",         "--env",         "A=1",
                                                    "--env",       "B=x=y",         "--provisioned",
                                                    "2",           "--net",         "own",
                                                    "--cpus",      "0.5",           "--max-instances",
                                                    "7",           "--description", "makes images small",
                                                    "--replace",   "--force",       "--start-timeout",
                                                    "5m"});
  const v1::FunctionSpec& spec = request.spec();
  EXPECT_EQ(spec.name(), "resize");
  EXPECT_EQ(spec.runtime(), "python3.11");
  EXPECT_EQ(spec.handler(), "app.handler");
  EXPECT_EQ(spec.code(), "/home/me/code");
  EXPECT_THAT(spec.dependencies(), ElementsAre("numpy", "PIL"));
  EXPECT_FALSE(spec.discover_dependencies());
  EXPECT_THAT(spec.layers(), ElementsAre("/opt/a", "/home/me/b"));
  EXPECT_EQ(spec.memory_bytes(), uint64_t{512} << 20);
  EXPECT_EQ(spec.timeout_ms(), 30'000u);
  EXPECT_EQ(spec.start_timeout_ms(), 300'000u);
  EXPECT_EQ(spec.environment().at("A"), "1");
  EXPECT_EQ(spec.environment().at("B"), "x=y");
  EXPECT_EQ(spec.provisioned(), 2u);
  EXPECT_EQ(spec.max_instances(), 7u);
  EXPECT_EQ(spec.network(), v1::CloneOptions::OWN);
  EXPECT_EQ(spec.cpus(), 0.5);
  EXPECT_EQ(spec.description(), "makes images small");
  EXPECT_TRUE(request.replace());
  EXPECT_TRUE(request.force());
}

TEST(FunctionArgumentsTest, DependenciesAreFoundOutUnlessNamed) {
  auto deploy = [](std::vector<std::string> more) {
    std::vector<std::string> all = {"fn", "deploy", "f", "--runtime", "python", "--code", "."};
    all.insert(all.end(), more.begin(), more.end());
    return Parsed<v1::DeployFunctionRequest>(all).spec();
  };
  EXPECT_TRUE(deploy({}).discover_dependencies());
  EXPECT_EQ(deploy({}).timeout_ms(), 0u) << "the service has the defaults";
  EXPECT_TRUE(deploy({"--deps", "auto"}).discover_dependencies());
  EXPECT_TRUE(deploy({"--deps", "numpy,auto"}).discover_dependencies());
  EXPECT_THAT(deploy({"--deps", "numpy,auto"}).dependencies(), ElementsAre("numpy"));
  EXPECT_FALSE(deploy({"--deps", "none"}).discover_dependencies());
  EXPECT_EQ(deploy({"--deps", "none"}).dependencies_size(), 0);
  EXPECT_FALSE(deploy({}).no_image());
  EXPECT_TRUE(deploy({"--no-image"}).no_image());
  EXPECT_FALSE(deploy({"--no-image"}).discover_dependencies());
}

TEST(FunctionArgumentsTest, VariablesComeFromFilesToo) {
  auto folder = TemporaryDirectory::Make("/tmp", "rk-env-");
  ASSERT_TRUE(folder.ok()) << folder.status();
  const auto file = [&](const std::string& name, const std::string& text) {
    const std::string path = absl::StrCat(folder->path(), "/", name);
    EXPECT_TRUE(WriteFileAtomically(path, text).ok());
    return path;
  };
  const std::string good = file("good", "# ours\n\n  TOKEN=a=b # no remark\r\nEMPTY=\nLEVEL=low\n");
  auto set = Parsed<v1::SetFunctionRequest>({"fn", "set", "f", "--env-file", good, "--env-file",
                                             file("more", "QUOTED=\"x\""), "--env", "LEVEL=high"});
  EXPECT_THAT(set.environment(), UnorderedElementsAre(Pair("TOKEN", "a=b # no remark"), Pair("EMPTY", ""),
                                                      Pair("LEVEL", "high"), Pair("QUOTED", "\"x\"")));
  // What the daemon takes.
  set = Parsed<v1::SetFunctionRequest>({"fn", "set", "f", "--env-file", file("letters", "CAF\u00c9=1\n")});
  EXPECT_THAT(set.environment(), UnorderedElementsAre(Pair("CAF\u00c9", "1")));
  auto deploy = Parsed<v1::DeployFunctionRequest>(
      {"fn", "deploy", "f", "--runtime", "python", "--code", ".", "--env-file", good});
  EXPECT_EQ(deploy.spec().environment().at("LEVEL"), "low");
  ExpectRefused({"fn", "set", "f", "--env-file", file("bad", "A=1\ns3cret\n")}, "line 2: write NAME=VALUE");
  ExpectRefused({"fn", "set", "f", "--env-file", file("bare", "\n9s3cret/==\n")},
                "line 2: write NAME=VALUE; what stands before '='");
  ExpectRefused({"fn", "set", "f", "--env-file", absl::StrCat(folder->path(), "/absent")}, "--env-file: ");
  ExpectRefused({"fn", "set", "f", "--env-file", "/dev/zero"}, "more than 1.0 MiB");
}

TEST(FunctionArgumentsTest, LayersAreSetWithCodeAndWithout) {
  auto set = Parsed<v1::SetFunctionRequest>(
      {"fn", "set", "f", "--layer", "a", "--layer", "/opt/b", "--venv", "venv", "--no-layers"});
  EXPECT_THAT(set.layers(), ElementsAre("/home/me/a", "/opt/b"));
  EXPECT_EQ(set.venv(), "/home/me/venv");
  EXPECT_TRUE(set.no_layers());
  EXPECT_FALSE(set.has_code());
  auto code = Parsed<v1::SetFunctionRequest>({"fn", "set", "f", "--code", "code", "--layer", "a"});
  EXPECT_EQ(code.code(), "/home/me/code");
  EXPECT_THAT(code.layers(), ElementsAre("/home/me/a"));
  EXPECT_FALSE(code.has_venv());
  EXPECT_TRUE(Parsed<v1::SetFunctionRequest>({"fn", "set", "f", "--no-layers"}).layers().empty());
  ExpectRefused({"fn", "set", "f"}, "--layer");
}

TEST(FunctionArgumentsTest, AnInvocationKnowsWhereItsPayloadComesFrom) {
  auto invocation = Parsed<FunctionInvocation>({"fn", "invoke", "f", "--payload", "@event.json", "--log-tail",
                                                "--output", "out", "--client-context", "{}"});
  EXPECT_EQ(invocation.request.name(), "f");
  EXPECT_EQ(invocation.payload, "@event.json");
  EXPECT_EQ(invocation.output, "/home/me/out");
  EXPECT_TRUE(invocation.request.tail_log());
  EXPECT_EQ(invocation.request.client_context(), "{}");
  EXPECT_EQ(Parsed<FunctionInvocation>({"fn", "invoke", "f", "--payload", "-"}).payload, "-");
  EXPECT_TRUE(Parsed<FunctionInvocation>({"fn", "invoke", "f", "--async"}).request.async());
  EXPECT_TRUE(Parsed<FunctionInvocation>({"fn", "invoke", "f", "--dry-run"}).request.dry_run());
  ExpectRefused({"fn", "invoke", "f", "--async", "--output", "x"}, "--async and --dry-run don't wait");
  ExpectRefused({"fn", "invoke", "f", "--dry-run", "--log-tail"}, "--async and --dry-run don't wait");
}

TEST(FunctionArgumentsTest, LogsCanBeLimited) {
  auto all = Parsed<v1::FunctionLogsRequest>({"fn", "logs", "f"});
  EXPECT_FALSE(all.has_tail_lines());
  EXPECT_FALSE(all.follow());
  EXPECT_EQ(all.since_unix_ns(), 0);
  auto some = Parsed<v1::FunctionLogsRequest>({"fn", "logs", "f", "-f", "--tail", "0", "--since", "1h"});
  EXPECT_TRUE(some.has_tail_lines());
  EXPECT_EQ(some.tail_lines(), 0u);
  EXPECT_TRUE(some.follow());
  const int64_t hour = int64_t{3600} * 1'000'000'000;
  EXPECT_LE(some.since_unix_ns(), UnixNanos() - hour);
  EXPECT_GT(some.since_unix_ns(), UnixNanos() - 2 * hour);
  ExpectRefused({"fn", "logs", "f", "--since", "yesterday"}, "is no age");
}

TEST(FunctionArgumentsTest, OtherCommands) {
  Parsed<v1::ListFunctionsRequest>({"fn", "ls"});
  EXPECT_THAT(Parsed<FunctionRemoval>({"fn", "rm", "a", "b"}).names, ElementsAre("a", "b"));
  EXPECT_EQ(Parsed<v1::FunctionStatsRequest>({"fn", "stats"}).name(), "");
  EXPECT_EQ(Parsed<v1::FunctionStatsRequest>({"fn", "stats", "f"}).name(), "f");
  auto build = Parsed<v1::BuildDependenciesRequest>(
      {"deps", "build", "numpy,scipy", "torch", "--runtime", "python", "--rebuild"});
  EXPECT_THAT(build.modules(), ElementsAre("numpy", "scipy", "torch"));
  EXPECT_EQ(build.runtime(), "python");
  EXPECT_TRUE(build.rebuild());
  Parsed<v1::ListDependenciesRequest>({"deps", "ls"});
  EXPECT_THAT(Parsed<DependenciesRemoval>({"deps", "rm", "a:1"}).images, ElementsAre("a:1"));
}

TEST(FunctionArgumentsTest, BadUsageIsNamed) {
  ExpectRefused({"fn"}, "'fn deploy'");
  ExpectRefused({"fn", "deploy", "f", "--runtime", "python"}, "--code");
  const std::vector<std::string> deploy = {"fn", "deploy", "f", "--runtime", "python", "--code", "."};
  const std::pair<std::vector<std::string>, const char*> wrong[] = {
      {{"--memory", "lots"}, "--memory: 'lots' is not a size"},
      {{"--memory", "0"}, "--memory: 0"},
      {{"--timeout", "0s"}, "--timeout: '0s' is not between 1ms and 15m"},
      {{"--timeout", "1h"}, "--timeout: '1h' is not between"},
      {{"--timeout", "soon"}, "--timeout: 'soon' is no duration"},
      {{"--start-timeout", "0s"}, "--start-timeout: '0s' is not between 1000ms and 15m"},
      {{"--force"}, "--replace"},
      {{"--env", "A"}, "write NAME=VALUE"},
      {{"--net", "mine"}, "mine"},
      {{"--provisioned", "-1"}, "provisioned"}};
  for (const auto& [more, words] : wrong) {
    std::vector<std::string> all = deploy;
    all.insert(all.end(), more.begin(), more.end());
    ExpectRefused(all, words);
  }
}

TEST(DurationsTest, AreReadInTheirUnits) {
  EXPECT_EQ(*ParseMilliseconds("250ms"), 250u);
  EXPECT_EQ(*ParseMilliseconds("30s"), 30'000u);
  EXPECT_EQ(*ParseMilliseconds("30"), 30'000u);
  EXPECT_EQ(*ParseMilliseconds("15m"), 900'000u);
  EXPECT_EQ(*ParseMilliseconds("1h"), 3'600'000u);
  EXPECT_TRUE(absl::IsOutOfRange(ParseMilliseconds("0m").status()));
  for (const char* text : {"", "s", "1.5s", "-1s", "0", "1 s", "99999999999999999999s", "3d"}) {
    EXPECT_FALSE(ParseMilliseconds(text).ok()) << text;
  }
}

}  // namespace
}  // namespace rekindle::cli
