#include "restore/kept_by_use.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::restore {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pointee;

using KeptNumbers = KeptByUse<int>;
constexpr uint64_t kRoom = 100;

TEST(KeptByUseTest, WhatWasUsedTheLongestTimeAgoGoes) {
  KeptNumbers kept(2);
  EXPECT_THAT(kept.Keep("one", std::make_shared<int>(1), 0, kRoom), IsEmpty());
  EXPECT_THAT(kept.Keep("two", std::make_shared<int>(2), 0, kRoom), IsEmpty());
  EXPECT_THAT(kept.Use("one"), Pointee(1));
  EXPECT_THAT(kept.Find("two"), Pointee(2)) << "to look is no use";
  EXPECT_THAT(kept.Keep("three", std::make_shared<int>(3), 0, kRoom), ElementsAre(Pointee(2)));
  EXPECT_THAT(kept.names(), ElementsAre("one", "three"));
  EXPECT_EQ(kept.Use("two"), nullptr);
}

TEST(KeptByUseTest, WhatHasMemoryMakesRoomForWhatNeedsSome) {
  KeptNumbers kept(8);
  EXPECT_THAT(kept.Keep("none", std::make_shared<int>(0), 0, kRoom), IsEmpty());
  EXPECT_THAT(kept.Keep("one", std::make_shared<int>(1), 40, kRoom), IsEmpty());
  EXPECT_THAT(kept.Keep("two", std::make_shared<int>(2), 60, kRoom), IsEmpty());
  EXPECT_THAT(kept.Use("one"), Pointee(1));
  EXPECT_THAT(kept.Keep("three", std::make_shared<int>(3), 1, kRoom), ElementsAre(Pointee(2)));
  EXPECT_THAT(kept.Keep("four", std::make_shared<int>(4), 100, kRoom), ElementsAre(Pointee(1), Pointee(3)));
  EXPECT_THAT(kept.names(), ElementsAre("four", "none")) << "what has none makes no room";
}

TEST(KeptByUseTest, WhatHasTooMuchIsNotKeptAndDrivesNobodyOut) {
  KeptNumbers kept(8);
  EXPECT_THAT(kept.Keep("one", std::make_shared<int>(1), 40, kRoom), IsEmpty());
  EXPECT_THAT(kept.Keep("large", std::make_shared<int>(2), 101, kRoom), IsEmpty());
  EXPECT_THAT(kept.names(), ElementsAre("one"));
}

TEST(KeptByUseTest, ANewOneTakesThePlaceOfItsName) {
  KeptNumbers kept(1);
  EXPECT_THAT(kept.Keep("one", std::make_shared<int>(1), 90, kRoom), IsEmpty());
  EXPECT_THAT(kept.Keep("one", std::make_shared<int>(2), 90, kRoom), ElementsAre(Pointee(1)));
  EXPECT_THAT(kept.Remove("one"), ElementsAre(Pointee(2)));
  EXPECT_THAT(kept.Remove("one"), IsEmpty());
  EXPECT_THAT(kept.Keep("two", std::make_shared<int>(3), 0, kRoom), IsEmpty());
  EXPECT_THAT(kept.RemoveAll(), ElementsAre(Pointee(3)));
  EXPECT_THAT(kept.names(), IsEmpty());
}

}  // namespace
}  // namespace rekindle::restore
