#include "criu/build_id.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "base/file.h"
#include "base/unique_fd.h"

namespace rekindle::criu {
namespace {

// As the loader has mapped it.
std::string OwnBuildId() {
  std::string id;
  ::dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* out) {
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const ElfW(Phdr)& segment = object->dlpi_phdr[i];
          if (segment.p_type != PT_NOTE) continue;
          const char* at = reinterpret_cast<const char*>(object->dlpi_addr + segment.p_vaddr);
          for (const char* end = at + segment.p_memsz; at < end;) {
            ElfW(Nhdr) note;
            memcpy(&note, at, sizeof note);
            const char* description = at + sizeof note + ((note.n_namesz + 3) & ~3u);
            if (note.n_type == NT_GNU_BUILD_ID) {
              *static_cast<std::string*>(out) = std::string(description, note.n_descsz);
            }
            at = description + ((note.n_descsz + 3) & ~3u);
          }
        }
        return 1;  // the program is the first
      },
      &id);
  return id;
}

UniqueFd FileWith(const std::string& content) {
  UniqueFd file(::memfd_create("program", MFD_CLOEXEC));
  EXPECT_TRUE(WriteFully(file.get(), content.data(), content.size(), "program").ok());
  return file;
}

TEST(BuildIdTest, OfThisProgram) {
  UniqueFd program(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  absl::StatusOr<std::string> id = ReadBuildId(program.get());
  if (OwnBuildId().empty()) {
    EXPECT_TRUE(absl::IsNotFound(id.status())) << id.status();
  } else {
    ASSERT_TRUE(id.ok()) << id.status();
    EXPECT_EQ(*id, OwnBuildId());
  }
}

TEST(BuildIdTest, OfALibrary) {
  UniqueFd library(::open("/lib/x86_64-linux-gnu/libc.so.6", O_RDONLY | O_CLOEXEC));
  absl::StatusOr<std::string> id = ReadBuildId(library.get());
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_EQ(id->size(), 20u);
}

TEST(BuildIdTest, OtherFilesHaveNone) {
  for (const std::string& content : {std::string(), std::string("#!/bin/sh\n"), std::string(5000, 'x')}) {
    EXPECT_TRUE(absl::IsNotFound(ReadBuildId(FileWith(content).get()).status())) << content.size();
  }
}

// Whatever the bytes are: an answer, and no crash.
TEST(BuildIdTest, DamagedHeaders) {
  UniqueFd library(::open("/lib/x86_64-linux-gnu/libc.so.6", O_RDONLY | O_CLOEXEC));
  std::string head(8192, '\0');
  ASSERT_EQ(::pread(library.get(), head.data(), head.size(), 0), static_cast<ssize_t>(head.size()));
  UniqueFd file = FileWith(head);
  for (size_t i = 0; i < 2048; ++i) {
    for (const char value : {'\0', '\x7f', '\xff'}) {
      ASSERT_EQ(::pwrite(file.get(), &value, 1, static_cast<off_t>(i)), 1);
      ReadBuildId(file.get()).status().IgnoreError();
    }
    ASSERT_EQ(::pwrite(file.get(), &head[i], 1, static_cast<off_t>(i)), 1);
  }
  for (size_t size = 0; size < 2048; ++size) {
    ReadBuildId(FileWith(head.substr(0, size)).get()).status().IgnoreError();
  }
}

}  // namespace
}  // namespace rekindle::criu
