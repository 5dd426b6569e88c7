#include "ckpt/leases.h"

#include <gtest/gtest.h>
#include <sys/sysmacros.h>

#include <memory>

#include "absl/strings/string_view.h"

namespace rekindle::ckpt {

class LeasesTest : public testing::Test {
 protected:
  static std::unique_ptr<Leases> Of(absl::string_view table) {
    std::unique_ptr<Leases> leases(new Leases());
    leases->Parse(table);
    return leases;
  }
};

namespace {

TEST_F(LeasesTest, AreOfTheirFileSystem) {
  const std::unique_ptr<Leases> leases =
      Of("1: LEASE  ACTIVE    WRITE 12 fe:0a:53 0 EOF\n"
         "2: POSIX  ADVISORY  WRITE 12 fe:0a:54 0 EOF\n"
         "3: LEASE  BREAKING  READ  12 00:1c:55 0 EOF\n"
         "3: LEASE  ACTIVE\n");
  EXPECT_TRUE(leases->Has(::makedev(0xfe, 10), 53));
  EXPECT_FALSE(leases->Has(::makedev(0xfe, 11), 53));
  EXPECT_TRUE(leases->Has(::makedev(0, 11), 53)) << "an overlay may have it from there";
  EXPECT_FALSE(leases->Has(::makedev(0xfe, 10), 54)) << "it is a lock";
  EXPECT_TRUE(leases->Has(::makedev(0, 0x1c), 55));
  EXPECT_TRUE(leases->Has(::makedev(0, 0x99), 55)) << "as btrfs may show it";
  EXPECT_FALSE(leases->Has(::makedev(0xfe, 10), 55));
}

}  // namespace
}  // namespace rekindle::ckpt
