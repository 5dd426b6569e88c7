#include "daemon/copy_command.h"

#include <unistd.h>

#include <string>

#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

v1::SupervisedJobRecord Record() {
  v1::SupervisedJobRecord record;
  record.set_name("llm");
  record.set_uid(1000);
  record.set_gid(100);
  record.add_groups(5);
  record.add_environment("HOME=/home/alice");
  record.mutable_policy()->set_keep_images(4);
  record.mutable_policy()->mutable_copy_to()->set_place("/mnt/images");
  for (const char* image : {"llm:1", "llm:2", "other:3"}) {
    v1::RestartPoint* point = record.add_points();
    point->set_image(image);
    point->set_digest(std::string("sha256:") + image);
  }
  return record;
}

TEST(CopyPlanTest, IsTheUsersOfTheNewestImageOfTheName) {
  v1::SupervisedJobRecord record = Record();
  CopyPlan plan = CopyPlanOf(record, "llm");
  EXPECT_EQ(plan.newest, "sha256:llm:2");
  EXPECT_EQ(plan.keep, 4u);
  EXPECT_EQ(plan.user, (Owner{1000, 100, {5}}));
  EXPECT_THAT(plan.environment, ElementsAre("HOME=/home/alice"));
  EXPECT_EQ(plan.ended_unix_ns, 0);
  record.clear_environment();
  record.add_copy_environment("HOME=/home/bob");
  record.set_ended(true);
  record.set_ended_unix_ns(7);
  EXPECT_FALSE(plan.SameCommand(CopyPlanOf(record, "llm")));
  plan = CopyPlanOf(record, "llm");
  EXPECT_THAT(plan.environment, ElementsAre("HOME=/home/bob"));
  EXPECT_EQ(plan.ended_unix_ns, 7);
  record.clear_points();
  EXPECT_TRUE(plan.SameCommand(CopyPlanOf(record, "llm")));
  EXPECT_EQ(CopyPlanOf(record, "llm").newest, "");
}

TEST(EndCopyingTest, AllAreEndedTogetherAlsoThoseThatDoNotListen) {
  SubprocessOptions options;
  options.argv = {"/bin/sh", "-c", "trap '' TERM; exec sleep 1000"};
  SubprocessOptions listens = options;
  listens.argv = {"/bin/sleep", "1000"};
  absl::StatusOr<Subprocess> deaf = Subprocess::Start(options), good = Subprocess::Start(listens);
  ASSERT_TRUE(deaf.ok() && good.ok());
  Subprocess never;
  Subprocess* const all[] = {&*deaf, &never, &*good};
  EndCopying(all, absl::Milliseconds(20));
  EXPECT_FALSE(deaf->running());
  EXPECT_FALSE(good->running());
}

TEST(CheckCopyToTest, RemotesWithTheirSecretsAreRefused) {
  const auto check = [](const std::string& place) {
    v1::CopyTo to;
    to.set_place(place);
    return CheckCopyTo(to);
  };
  for (const char* place :
       {"/mnt/a,b", "node2:7443", "rclone:s3:bucket/a,b", "rclone:/mnt/a,b", "rclone::local:/a,b"})
    EXPECT_TRUE(check(place).ok()) << place;
  for (const char* place : {"", "rclone::s3,secret_access_key=x:b", "rclone:s3,env_auth=true:b"})
    EXPECT_TRUE(absl::IsInvalidArgument(check(place))) << place;
}

class CommandOutputTest : public ::testing::Test {
 protected:
  // What is told of a command that has written this.
  std::string ErrorIn(absl::string_view text) {
    EXPECT_EQ(::write(output_.writing_end(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    output_.Take();
    return output_.Error();
  }

  CommandOutput output_ = *CommandOutput::Make();
};

TEST_F(CommandOutputTest, TheErrorIsTold) {
  EXPECT_EQ(ErrorIn("rekindle: warning: it is odd\nrekindle: error: it is gone:\n  mount it\n"),
            "it is gone:\n  mount it");
}

TEST_F(CommandOutputTest, ElseTheLastLine) {
  EXPECT_EQ(output_.Error(), "it says nothing");
  EXPECT_EQ(ErrorIn("a\nrekindle: warning: it is gone; trying again\n"), "it is gone; trying again");
}

TEST_F(CommandOutputTest, OfMuchTheLastIsKept) {
  for (int i = 0; i < 20; ++i) ErrorIn(std::string(4000, 'x') + "\n");
  EXPECT_THAT(output_.Error(), SizeIs(4000));
  output_.CloseWritingEnd();
  output_.Take();
}

}  // namespace
}  // namespace rekindle::daemon
