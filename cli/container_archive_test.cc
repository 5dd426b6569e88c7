#include "cli/container_archive.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"

namespace rekindle::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ContainerArchiveTest : public ::testing::Test {
 protected:
  ContainerArchiveTest()
      : folder_(*TemporaryDirectory::Make(::testing::TempDir(), "rekindle_archive_test.")) {}

  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  // Runs it in the folder.
  void Shell(const std::string& command) {
    ASSERT_EQ(std::system(absl::StrCat("cd ", folder_.path(), " && ", command).c_str()), 0) << command;
  }
  void MakeContainer() {
    Shell(
        "mkdir checkpoint && head -c 200000 /dev/urandom >checkpoint/pages-1.img && echo x "
        ">checkpoint/inventory.img "
        "&& echo '{}' >spec.dump && echo '{}' >config.dump");
  }
  std::string Hint(const std::string& name) {
    auto file = OpenFile(path(name), O_RDONLY);
    EXPECT_TRUE(file.ok()) << file.status();
    return file.ok() ? ContainerArchiveHint(file->get(), name) : "";
  }

  const TemporaryDirectory folder_;
};

TEST_F(ContainerArchiveTest, IsKnownByItsMembers) {
  MakeContainer();
  for (const char* format : {"gnu", "pax", "ustar"}) {
    for (const char* members : {"checkpoint spec.dump config.dump", "./config.dump ./checkpoint"}) {
      Shell(absl::StrCat("tar --format=", format, " -cf x.tar ", members));
      EXPECT_THAT(Hint("x.tar"), AllOf(HasSubstr("the checkpoint of a container, as podman and the kubelet"),
                                       HasSubstr("tar -xf x.tar -C DIR"),
                                       HasSubstr("rekindle import --criu DIR/checkpoint")))
          << format << " " << members;
    }
  }
}

TEST_F(ContainerArchiveTest, CompressedOnesMayBeOne) {
  MakeContainer();
  Shell("tar -czf x.tar.gz checkpoint spec.dump");
  EXPECT_THAT(Hint("x.tar.gz"), AllOf(HasSubstr("compressed (gzip)"), HasSubstr("tar -xf x.tar.gz")));
}

TEST_F(ContainerArchiveTest, OthersAreNone) {
  MakeContainer();
  Shell("tar -cf other.tar spec.dump && tar -cf images.tar checkpoint");
  for (const char* name : {"other.tar", "images.tar"})
    EXPECT_THAT(Hint(name), HasSubstr("it is a tar archive"));
  Shell("head -c 4096 /dev/zero >zeros; printf short >short; cp checkpoint/pages-1.img random; : >empty");
  for (const char* name : {"zeros", "short", "random", "empty"}) EXPECT_THAT(Hint(name), IsEmpty()) << name;
}

// Whoever wrote it may have lied about a member's length.
TEST_F(ContainerArchiveTest, LengthsThatMakeNoSenseEndTheSearch) {
  MakeContainer();
  Shell("tar -cf x.tar spec.dump checkpoint");
  for (const std::string& length :
       {std::string("77777777777"), std::string("\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 12),
        std::string("-1"), std::string("99999999999")}) {
    std::fstream file(path("x.tar"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(124);
    file.write(length.data(), static_cast<std::streamsize>(length.size()));
    file.close();
    EXPECT_THAT(Hint("x.tar"), HasSubstr("it is a tar archive"));
  }
}

}  // namespace
}  // namespace rekindle::cli
