#include "cli/container_archive.h"

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace rekindle::cli {
namespace {

constexpr size_t kBlock = 512;
constexpr size_t kMostMembers = 4096;  // the two that tell are among the first
using Header = std::array<char, kBlock>;

constexpr std::pair<absl::string_view, absl::string_view> kCompressions[] = {
    {absl::string_view("\x1f\x8b", 2), "gzip"},
    {absl::string_view("\x28\xb5\x2f\xfd", 4), "zstd"},
    {absl::string_view("\xfd"
                       "7zXZ",
                       5),
     "xz"},
    {"BZh", "bzip2"},
};

bool ReadHeader(int fd, off_t at, Header* header) {
  ssize_t n;
  do n = ::pread(fd, header->data(), header->size(), at);
  while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(header->size());
}

// Text of a field, which ends at a NUL or with it.
absl::string_view Field(const Header& header, size_t at, size_t length) {
  absl::string_view field(header.data() + at, length);
  return field.substr(0, field.find('\0'));
}

bool IsMember(const Header& header) {
  return absl::StartsWith(absl::string_view(header.data() + 257, 5), "ustar");
}

// In octal digits, or, where it is larger, in the 8 last bytes. Less than 0: neither.
int64_t BytesOf(const Header& header) {
  constexpr size_t kAt = 124, kLength = 12;
  uint64_t bytes = 0;
  if ((static_cast<unsigned char>(header[kAt]) & 0x80) != 0) {
    for (size_t i = kAt + 4; i < kAt + kLength; ++i)
      bytes = bytes << 8 | static_cast<unsigned char>(header[i]);
    return bytes > INT64_MAX / 2 ? -1 : static_cast<int64_t>(bytes);
  }
  for (char digit : absl::StripSuffix(Field(header, kAt, kLength), " ")) {
    if (digit < '0' || digit > '7') return -1;
    bytes = bytes * 8 + static_cast<uint64_t>(digit - '0');
  }
  return static_cast<int64_t>(bytes);
}

// Has the archive what the engines put beside CRIU's images?
bool IsCheckpoint(int fd, Header header) {
  bool has_images = false, has_description = false;
  off_t at = 0;
  for (size_t members = 0; members < kMostMembers && IsMember(header); ++members) {
    absl::string_view name = Field(header, 0, 100);
    absl::ConsumePrefix(&name, "./");
    has_images |= absl::StartsWith(name, "checkpoint/") || name == "checkpoint";
    has_description |= name == "spec.dump" || name == "config.dump";
    if (has_images && has_description) return true;
    const int64_t bytes = BytesOf(header);
    if (bytes < 0) return false;
    at += static_cast<off_t>(kBlock + (static_cast<uint64_t>(bytes) + kBlock - 1) / kBlock * kBlock);
    if (!ReadHeader(fd, at, &header)) return false;
  }
  return false;
}

std::string HowTo(const std::string& file) {
  return absl::StrCat(
      "its CRIU images can be taken in, inspected and exported: mkdir DIR && tar -xf ", file,
      " -C DIR && rekindle import --criu DIR/checkpoint -t NAME:TAG. The container comes back with its "
      "engine alone ('podman container restore --import'): its files and namespaces are not Rekindle's. "
      "Jobs in containers Rekindle captures from outside: 'rekindle ckpt PID'");
}

}  // namespace

std::string ContainerArchiveHint(int fd, const std::string& file) {
  Header header;
  if (!ReadHeader(fd, 0, &header)) return "";
  for (const auto& [magic, program] : kCompressions) {
    if (absl::StartsWith(absl::string_view(header.data(), header.size()), magic)) {
      return absl::StrCat("it is compressed (", program,
                          "). If somebody has compressed what 'rekindle export' wrote: ", program, " -dc ",
                          file,
                          " | rekindle import --file -. If it is the checkpoint of a container, which "
                          "podman wrote, ",
                          HowTo(file));
    }
  }
  if (!IsMember(header)) return "";
  if (!IsCheckpoint(fd, header)) return "it is a tar archive: unpack it, and import what is in it";
  return absl::StrCat("it is the checkpoint of a container, as podman and the kubelet write it: ",
                      HowTo(file));
}

}  // namespace rekindle::cli
