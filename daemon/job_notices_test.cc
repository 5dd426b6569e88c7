#include "daemon/job_notices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace rekindle::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class JobNoticesTest : public ::testing::Test {
 protected:
  // What followers were told since, each in a word or two.
  std::vector<std::string> TakeTold() {
    std::vector<std::string> told;
    while (const auto event = queue_->Next(absl::ZeroDuration())) {
      if (event->has_warning()) told.push_back(event->warning().warning());
      if (event->has_images_missing())
        told.push_back(absl::StrCat("images: ", event->images_missing().why()));
      if (event->has_copies()) told.push_back(absl::StrCat("copies: ", event->copies().trouble()));
    }
    return told;
  }

  JobNotices notices_{"train", /*daemon=*/true};
  const std::shared_ptr<JobEventQueue> queue_ = notices_.events().Follow();
};

TEST_F(JobNoticesTest, AWarningIsToldOnceAndStaysInTheList) {
  notices_.Warn("it strays");
  notices_.Warn("it strays");
  EXPECT_THAT(TakeTold(), ElementsAre("it strays"));
  EXPECT_THAT(notices_.warnings(), ElementsAre("it strays"));
  for (int i = 0; i < 100; ++i) notices_.Warn(absl::StrCat("number ", i));
  EXPECT_EQ(notices_.warnings().size(), 20u);
  EXPECT_EQ(TakeTold().size(), 19u);
}

TEST_F(JobNoticesTest, OfAKindThereIsOneWarning) {
  notices_.WarnOfKind("file 17 is too large", "its images: ");
  notices_.WarnOfKind("file 18 is too large", "its images: ");
  EXPECT_THAT(TakeTold(), ElementsAre("its images: file 17 is too large"));
}

TEST_F(JobNoticesTest, OfAFullLogItIsToldAnewOnceThereWasRoom) {
  notices_.LogIsFull("");
  EXPECT_FALSE(notices_.told_of_full_log());
  notices_.LogIsFull("the log is full");
  notices_.LogIsFull("the log is full");
  EXPECT_TRUE(notices_.told_of_full_log());
  EXPECT_THAT(TakeTold(), ElementsAre("the log is full"));
  notices_.LogIsFull("");
  EXPECT_THAT(notices_.warnings(), IsEmpty());
  notices_.LogIsFull("the log is full");
  EXPECT_THAT(TakeTold(), ElementsAre("the log is full"));
}

TEST_F(JobNoticesTest, WhyThereIsNoImageIsToldOnceUntilThereIsOne) {
  notices_.ImageTaken();
  EXPECT_THAT(TakeTold(), IsEmpty()) << "none was missing";
  notices_.NoImage(absl::InternalError("pack 12 is torn"), 10, 60);
  notices_.NoImage(absl::InternalError("pack 13 is torn"), 20, 60);
  EXPECT_THAT(TakeTold(), ElementsAre("images: pack 12 is torn"));
  notices_.ImageTaken();
  EXPECT_THAT(TakeTold(), ElementsAre("images: "));
  notices_.NoImage(absl::InternalError("pack 14 is torn"), 30, 60);
  EXPECT_THAT(TakeTold(), ElementsAre("images: pack 14 is torn"));
}

TEST_F(JobNoticesTest, ThatSomebodyElseCapturesItIsToldWhenItGoesOn) {
  const absl::Status busy = absl::AbortedError("a group captures it");
  notices_.NoImage(busy, 100, 60);
  notices_.NoImage(busy, 159, 60);
  EXPECT_THAT(TakeTold(), IsEmpty());
  notices_.NoImage(busy, 160, 60);
  EXPECT_THAT(TakeTold(), ElementsAre("images: a group captures it"));
  // Over, and then it begins anew.
  notices_.ImageTaken();
  notices_.NoImageWanted(busy, 200);
  notices_.NoImage(busy, 250, 60);
  EXPECT_THAT(TakeTold(), ElementsAre("images: "));
  notices_.NoImage(busy, 260, 60);
  EXPECT_THAT(TakeTold(), ElementsAre("images: a group captures it"));
  EXPECT_THAT(notices_.warnings(), IsEmpty());
}

TEST_F(JobNoticesTest, TroubleOfCopiesIsToldToThoseWhoComeLater) {
  EXPECT_FALSE(notices_.TroubleOfCopies().has_value());
  notices_.TellOfCopies("/mnt/copies", "it is full");
  EXPECT_THAT(TakeTold(), ElementsAre("copies: it is full"));
  ASSERT_TRUE(notices_.TroubleOfCopies().has_value());
  EXPECT_EQ(notices_.TroubleOfCopies()->copies().place(), "/mnt/copies");
  notices_.TellOfCopies("/mnt/copies", "");
  EXPECT_FALSE(notices_.TroubleOfCopies().has_value());
}

}  // namespace
}  // namespace rekindle::daemon
