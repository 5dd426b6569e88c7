#include "ckpt/socket_folders.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/follow_in_root.h"
#include "base/permission_bits.h"
#include "base/status.h"
#include "ckpt/criu_files.h"
#include "criu/unix_sockets.h"

namespace rekindle::ckpt {
namespace {

// Each is looked at while the job stands still.
constexpr size_t kMostFolders = 1000;

// The folder that must be there before the socket gets its name; empty: none.
std::string FolderOf(const criu::NamedUnixSocket& socket) {
  if (socket.gone) return socket.folder;
  const std::string path =
      socket.folder.empty() ? socket.name : absl::StrCat(socket.folder, "/", socket.name);
  return path.substr(0, path.rfind('/') + 1);
}

// The folder and those above it, from the top; none for a name that does not say for itself where it leads.
std::vector<std::string> WayTo(absl::string_view folder) {
  std::vector<std::string> way;
  if (folder.empty() || folder[0] != '/') return way;
  std::string path;
  way.emplace_back("/");
  for (absl::string_view part : absl::StrSplit(folder, '/', absl::SkipEmpty())) {
    if (part == "..") return {};
    if (part == ".") continue;
    absl::StrAppend(&path, "/", part);
    way.push_back(path);
  }
  return way;
}

bool IsRootsAlone(const v1::SocketFolder& folder) {
  return !folder.gone() && folder.uid() == 0 && (folder.mode() & (S_IWGRP | S_IWOTH)) == 0;
}

// Of a user's file in a folder of root's it is root who put it there, or gave it to him.
bool IsSocketOf(uid_t user, int root, const std::string& name) {
  const UniqueFd file = FollowInRoot(root, name, O_NOFOLLOW);
  struct stat info;
  return file.valid() && ::fstat(file.get(), &info) == 0 && S_ISSOCK(info.st_mode) && info.st_uid == user;
}

std::string Above(const std::string& path) { return path.substr(0, std::max<size_t>(path.rfind('/'), 1)); }

}  // namespace

absl::StatusOr<SocketFolders> LookAtSocketFolders(const std::map<std::string, std::string>& criu_files,
                                                  const std::string& root, uid_t user) {
  SocketFolders result;
  const absl::string_view files = ContentOf(criu_files, "files.img");
  if (files.empty()) return result;
  RK_ASSIGN_OR_RETURN(const std::vector<criu::NamedUnixSocket> sockets, criu::NamedUnixSockets(files));
  std::set<std::string> paths;
  size_t left_out = 0;
  for (const criu::NamedUnixSocket& socket : sockets) {
    std::vector<std::string> way = WayTo(FolderOf(socket));
    if (way.empty()) continue;
    if (paths.size() + way.size() > kMostFolders) {
      left_out += paths.contains(way.back()) ? 0 : 1;
    } else {
      paths.insert(std::make_move_iterator(way.begin()), std::make_move_iterator(way.end()));
    }
  }
  if (paths.empty()) return result;
  if (left_out > 0) {
    result.warnings.push_back(absl::StrCat("the job has Unix sockets in very many folders: ", left_out,
                                           " are not recorded, and must be there when it is restored"));
  }
  RK_ASSIGN_OR_RETURN(const UniqueFd top, OpenFile(root, O_PATH | O_DIRECTORY));
  std::set<std::string> gone, of_root;
  for (const std::string& path : paths) {
    v1::SocketFolder folder;
    folder.set_path(path);
    const UniqueFd place =
        gone.contains(Above(path)) ? UniqueFd() : FollowInRoot(top.get(), path, O_DIRECTORY);
    struct stat info;
    struct statfs file_system;
    if (place.valid() && ::fstat(place.get(), &info) == 0 && ::fstatfs(place.get(), &file_system) == 0) {
      folder.set_mode(info.st_mode & kPermissionBits);
      folder.set_uid(info.st_uid);
      folder.set_gid(info.st_gid);
      folder.set_device(info.st_dev);
      folder.set_inode(info.st_ino);
      folder.set_file_system(static_cast<uint64_t>(file_system.f_type));
    } else {
      folder.set_gone(true);
      gone.insert(path);
    }
    if (IsRootsAlone(folder)) of_root.insert(path);
    result.folders.push_back(std::move(folder));
  }
  for (const criu::NamedUnixSocket& socket : sockets) {
    if (user == 0 || socket.gone || !socket.folder.empty()) continue;
    const std::vector<std::string> way = WayTo(FolderOf(socket));
    if (way.empty() || !of_root.contains(way.back())) continue;
    if (IsSocketOf(user, top.get(), socket.name)) result.placed.push_back(socket.name);
  }
  return result;
}

}  // namespace rekindle::ckpt
