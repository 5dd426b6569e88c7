#include "cli/hints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/arguments.h"
#include "cli/foreign_words.h"

namespace rekindle::cli {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// What is said of this command line, its words separated by spaces.
std::string Said(absl::string_view line) {
  const ParsedArguments parsed = ParseArguments(absl::StrSplit(line, ' ', absl::SkipEmpty()), "/home/me", {});
  if (!parsed.status.ok()) {
    EXPECT_EQ(parsed.status.code(), absl::StatusCode::kInvalidArgument) << line;
  }
  return std::string(parsed.status.message());
}

TEST(HintsTest, ASlipInAnOptionIsNamedWithWhatWasMeant) {
  EXPECT_THAT(Said("run --evry 5m -- train"), HasSubstr("no option '--evry': did you mean '--every'?"));
  EXPECT_THAT(Said("run --evry=5m train"), HasSubstr("no option '--evry': did you mean '--every'?"));
  EXPECT_THAT(Said("run --every 5m --restart5 3 train"), HasSubstr("did you mean '--restarts'?"));
  EXPECT_THAT(Said("restore x:1 --detatch"), HasSubstr("did you mean '--detach'?"));
  EXPECT_THAT(Said("restore x:1 -detach"), HasSubstr("did you mean '--detach'?"));
  EXPECT_THAT(Said("--jsno ls"), HasSubstr("did you mean '--json'?"));
  EXPECT_THAT(Said("ls --jsno"), HasSubstr("did you mean '--json'?"));
  EXPECT_THAT(Said("fn deploy f --runtime python --code . --memroy 1G"),
              HasSubstr("did you mean '--memory'?"));
}

// The wrong option is the cause, not what is missing for it.
TEST(HintsTest, AWrongOptionComesBeforeWhatIsMissing) {
  EXPECT_THAT(Said("ckpt 4711 --tga x:1"), HasSubstr("no option '--tga': did you mean '--tag'?"));
  EXPECT_THAT(Said("ckpt 4711"), HasSubstr("--tag"));
  EXPECT_THAT(Said("ckpt 4711"), Not(HasSubstr("no option")));
}

TEST(HintsTest, WhatIsMissingIsNamedAsTheHelpNamesIt) {
  EXPECT_THAT(Said("rm"), HasSubstr("IMAGE is missing: The images, as in 'rekindle rm web:v1 web:v2'"));
  EXPECT_THAT(Said("diff a:1"), HasSubstr("B is missing: The other, as in 'rekindle diff"));
  EXPECT_THAT(Said("working-set drop"), HasSubstr("IMAGE is missing"));
}

TEST(HintsTest, ThereIsNoHelpForWhatIsNoCommand) {
  EXPECT_THAT(Said("help nosuch"), HasSubstr("nosuch"));
  EXPECT_THAT(Said("nosuch --help"), HasSubstr("nosuch"));
  for (const char* line : {"help", "--help", "help ls", "fn --help", "--json ls --help"})
    EXPECT_EQ(Said(line), "") << line;
}

TEST(HintsTest, AnOptionOfAnotherCommandIsNamedWithIt) {
  EXPECT_THAT(Said("ckpt 4711 -t x:1 --every 5m"), HasSubstr("no option '--every' of 'rekindle ckpt', but"));
  EXPECT_THAT(Said("ckpt 4711 -t x:1 --every 5m"), HasSubstr("'rekindle run' has it"));
  EXPECT_THAT(Said("--every 5m run train"), HasSubstr("before a command, but 'rekindle run' has it"));
}

TEST(HintsTest, ASlipInACommandIsNamedWithWhatWasMeant) {
  EXPECT_THAT(Said("resotre x:1"), HasSubstr("no command 'resotre': did you mean 'rekindle restore'?"));
  EXPECT_THAT(Said("resto x:1"), HasSubstr("did you mean 'rekindle restore'?"));
  EXPECT_THAT(Said("fn list"), HasSubstr("no command 'fn list': did you mean 'rekindle fn ls'?"));
  EXPECT_THAT(Said("fn depoly f"), HasSubstr("did you mean 'rekindle fn deploy'?"));
  EXPECT_THAT(Said("fn frobnicate f"), HasSubstr("there are deploy, set, invoke, ls"));
  EXPECT_THAT(Said("gpu"), HasSubstr("'gpu park'"));
  EXPECT_THAT(Said("working-set rm x:1"), HasSubstr("did you mean 'rekindle working-set drop'?"));
  EXPECT_THAT(Said("frobnicate"), Not(HasSubstr("did you mean")));
}

TEST(HintsTest, NothingDangerousIsGuessedFromAfar) {
  for (const char* line : {"g", "cg", "gp", "r", "rn", "mr", "rmm", "p", "pru", "purnee", "sotpp", "fn rmm f",
                           "group resolv3e4 x", "template dwno"}) {
    EXPECT_THAT(Said(line), Not(HasSubstr("did you mean"))) << line;
  }
  EXPECT_THAT(Said("prnue train --keep-last 1"), HasSubstr("did you mean 'rekindle prune'?"));
  for (const char* line : {"ckpt 1 -t x:1 --repalcee", "fsck --rep", "fsck --rpairr"})
    EXPECT_THAT(Said(line), Not(HasSubstr("did you mean"))) << line;
}

TEST(HintsTest, WordsOfCriuAndOthersAreKnown) {
  EXPECT_THAT(Said("dump -t 4711 -D dir"), HasSubstr("did you mean 'rekindle ckpt'?"));
  EXPECT_THAT(Said("ckpt 4711 -t x:1 --leave-running"), HasSubstr("nor need for it: the job runs on"));
  EXPECT_THAT(Said("ckpt 4711 -D dir"), HasSubstr("-t NAME:TAG"));
  EXPECT_THAT(Said("restore -D dir"), HasSubstr("rekindle import --criu DIR"));
  EXPECT_THAT(Said("restore x:1 -Ddir"), HasSubstr("rekindle import --criu DIR"));
  EXPECT_THAT(Said("restore x:1 --tcp-established"), HasSubstr("come back, unless --tcp-close"));
  EXPECT_THAT(Said("--toggle --pid 4711"), HasSubstr("rekindle gpu park"));
  EXPECT_THAT(Said("daemon"), HasSubstr("rekindled"));
}

TEST(HintsTest, OneWordTooManyIsNamed) {
  EXPECT_THAT(Said("ckpt 1 2 -t x:1"), HasSubstr("'2' is a word too many for 'rekindle ckpt'"));
  EXPECT_THAT(Said("ckpt 1 2 3 -t x:1"), HasSubstr("'2' and what follows are words too many"));
}

TEST(HintsTest, WhatIsWrongIsPrintableAndShort) {
  EXPECT_THAT(Said("--\x1b[31mred ls"), Not(HasSubstr("\x1b")));
  EXPECT_LT(Said(absl::StrCat("ls --", std::string(100'000, 'x'))).size(), 300u);
}

TEST(HintsTest, PlacesOfOtherProgramsAreNamedInOurForm) {
  for (const char* option : {"--to", "--from"}) {
    auto said = [&](const char* place) { return Said(absl::StrCat("copy x:1 ", option, " ", place)); };
    for (const char* store : {"s3", "gs", "az", "b2"})
      EXPECT_THAT(said(absl::StrCat(store, "://bucket/images").c_str()),
                  HasSubstr("write rclone:REMOTE:bucket/images"));
    EXPECT_THAT(said("s3:bucket/images"), HasSubstr("rclone:s3:bucket/images"));
    EXPECT_THAT(said("me@node2:/var/store"), HasSubstr("HOST:PORT"));
    EXPECT_THAT(said("rclone:bucket"), HasSubstr("rclone:bucket:PATH"));
    EXPECT_THAT(said("file:///mnt/store"), HasSubstr("/mnt/store"));
    EXPECT_THAT(said("ssh://node2"), HasSubstr("| ssh HOST"));
    EXPECT_THAT(said("https://node2/x"), HasSubstr("HOST:PORT or unix:///PATH"));
    for (const char* good : {"rclone:s3:bucket/images", "rclone:7443", "node2:7443", "[::1]:7443",
                             "unix:///run/rekindle/rekindled.sock", "/mnt/a:b/c", "./a:b"})
      EXPECT_THAT(said(good), IsEmpty()) << good;
  }
}

// Foreign words name commands and options that there are, and none of ours is foreign.
TEST(ForeignWordsTest, TheCommandsNamedAreThere) {
  std::set<std::pair<absl::string_view, absl::string_view>> seen;
  for (const ForeignCommand& command : ForeignCommands()) {
    const std::string line = absl::StrCat(command.above, " ", command.word);
    EXPECT_TRUE(seen.insert({command.above, command.word}).second) << line << " is there twice";
    EXPECT_FALSE(command.ours.empty() && command.note.empty()) << line;
    EXPECT_THAT(Said(line), HasSubstr("there is no command")) << line;
    if (!command.ours.empty()) {
      EXPECT_THAT(Said(command.ours), Not(AnyOf(HasSubstr("there is no command"),
                                                HasSubstr("there is no option"), HasSubstr("too many"))))
          << line;
    }
  }
}

TEST(ForeignWordsTest, TheOptionsAreForeign) {
  std::set<std::pair<std::string, std::string>> seen;
  for (const ForeignOption& line : ForeignOptions()) {
    for (absl::string_view command : absl::StrSplit(line.commands, ',')) {
      EXPECT_TRUE(seen.insert({std::string(command), std::string(line.option)}).second)
          << command << " " << line.option << " is there twice";
      EXPECT_THAT(Said(absl::StrCat(command, " ", line.option)), HasSubstr("there is no option"))
          << line.option;
    }
  }
}

// In a note, 'rekindle …' is a command line, and each --option is one of a command's.
TEST(ForeignWordsTest, WhatTheNotesNameIsThere) {
  std::vector<absl::string_view> notes;
  for (const ForeignOption& line : ForeignOptions()) notes.push_back(line.note);
  for (const ForeignCommand& line : ForeignCommands()) notes.push_back(line.note);
  for (absl::string_view note : notes) {
    const std::vector<absl::string_view> parts = absl::StrSplit(note, '\'');
    for (absl::string_view line : parts) {
      if (!absl::ConsumePrefix(&line, "rekindle ")) continue;
      EXPECT_THAT(Said(line), Not(AnyOf(HasSubstr("there is no command"), HasSubstr("there is no option"),
                                        HasSubstr("too many"))))
          << note;
    }
  }
}

}  // namespace
}  // namespace rekindle::cli
