#include "daemon/damaged_images.h"

#include <cerrno>

#include "gtest/gtest.h"

namespace rekindle::daemon {
namespace {

constexpr char kImage[] = "sha256:1";

absl::Status Refused() { return store::ReadError(EIO, "/store/pack", 0, 4096); }

TEST(DamagedImagesTest, ARefusalByTheDiskProvesNothingUntilItHasLasted) {
  DamagedImages images;
  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(absl::IsUnavailable(images.Judge(kImage, Refused(), now))) << "all at once count as one";
  }
  EXPECT_EQ(images.Why(kImage, now), std::nullopt);
  now += DamagedImages::kBetweenRefusals;
  EXPECT_TRUE(absl::IsUnavailable(images.Judge(kImage, Refused(), now)));
  now += DamagedImages::kBetweenRefusals;
  EXPECT_TRUE(absl::IsDataLoss(images.Judge(kImage, Refused(), now)));
  EXPECT_NE(images.Why(kImage, now), std::nullopt);
}

TEST(DamagedImagesTest, WhatWasSeenInTheDataIsProofAndIsForgottenAfterAWhile) {
  DamagedImages images;
  const absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  EXPECT_TRUE(absl::IsDataLoss(images.Judge(kImage, absl::DataLossError("does not fit"), now)));
  EXPECT_EQ(images.Why(kImage, now), "does not fit");
  EXPECT_EQ(images.Why(kImage, now + DamagedImages::kForgottenAfter + absl::Seconds(1)), std::nullopt);
  EXPECT_TRUE(absl::IsUnavailable(
      images.Judge(kImage, Refused(), now + DamagedImages::kForgottenAfter + absl::Seconds(1))));
}

}  // namespace
}  // namespace rekindle::daemon
