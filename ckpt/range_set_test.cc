#include "ckpt/range_set.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(RangeSetTest, TellsWhatIsNew) {
  RangeSet set;
  EXPECT_THAT(set.Add({20, 30}), ElementsAre(AddressRange{20, 30}));
  EXPECT_THAT(set.Add({20, 30}), IsEmpty());
  EXPECT_THAT(set.Add({22, 28}), IsEmpty());
  EXPECT_THAT(set.Add({50, 60}), ElementsAre(AddressRange{50, 60}));
  EXPECT_THAT(set.Add({10, 70}),
              ElementsAre(AddressRange{10, 20}, AddressRange{30, 50}, AddressRange{60, 70}));
  EXPECT_THAT(set.Add({0, 80}), ElementsAre(AddressRange{0, 10}, AddressRange{70, 80}));
  EXPECT_THAT(set.Add({30, 30}), IsEmpty());
  EXPECT_THAT(set.Ranges(), ElementsAre(AddressRange{0, 80}));
}

TEST(RangeSetTest, TellsWhatItHas) {
  RangeSet set;
  EXPECT_THAT(set.Ranges(), IsEmpty());
  set.Add({10, 20});
  set.Add({20, 30});
  set.Add({40, 50});
  EXPECT_THAT(set.Ranges(), ElementsAre(AddressRange{10, 30}, AddressRange{40, 50}));
  EXPECT_THAT(set.Within({0, 10}), IsEmpty());
  EXPECT_THAT(set.Within({30, 40}), IsEmpty());
  EXPECT_THAT(set.Within({0, 11}), ElementsAre(AddressRange{10, 11}));
  EXPECT_THAT(set.Within({15, 45}), ElementsAre(AddressRange{15, 30}, AddressRange{40, 45}));
  EXPECT_THAT(set.Within({45, 90}), ElementsAre(AddressRange{45, 50}));
}

}  // namespace
}  // namespace rekindle::ckpt
