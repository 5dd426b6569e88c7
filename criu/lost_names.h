// Files that a job has open or mapped under a name that has been removed since, while they have others. CRIU
// gives such a file an extra name for the dump ("link_remap.N", beside the lost one) and takes that away
// again when the job runs on, so that its images can't be restored (criu/files-reg.c, dump_linked_remap and
// delete_link_remaps). Here the images are made to speak of another name, or to have the content.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rekindle::criu {

struct ExtraLink {
  std::string path;       // of CRIU's extra name
  std::string lost_name;  // one of those that are gone
  bool written = false;   // open for writing, by a descriptor
  std::vector<uint32_t>
      file_ids;  // CRIU's numbers of the file (RegularFile::id), one for each way it was opened
};

// `files_content`, `remaps_content`: of files.img and remap-fpath.img; the second is empty when no name is
// gone. DataLoss: they can't be read.
absl::StatusOr<std::vector<ExtraLink>> FindExtraLinks(absl::string_view files_content,
                                                      absl::string_view remaps_content);

// What takes the place of an extra name.
struct LinkReplacement {
  std::string name;  // a name that the file has
  // Where `name` is empty: it comes back as a file without one.
  std::string content;
  uid_t uid = 0;
  gid_t gid = 0;
  mode_t mode = 0;  // with the bits of a regular file
};

// Replaces extra names, by their paths, in `criu_files` (by name of the image file), and adds images of
// contents, which are moved there. NotFound: there is no such extra name. DataLoss as above; then nothing has
// changed.
absl::Status ReplaceExtraLinks(std::map<std::string, LinkReplacement>&& by_path,
                               std::map<std::string, std::string>* criu_files);

// Is that the name of an image file with the content of such a file?
bool HasContent(absl::string_view image_file);

// A file that comes back without a name, as CRIU's images have it.
struct Ghost {
  std::string path;        // where CRIU makes it for a moment
  std::string image_file;  // the name of its image
  std::string image_head;  // what that begins with; the content follows
};

// Makes ghosts of the files with these paths, whose owners and modes are given, in the contents of files.img
// and remap-fpath.img (which may be empty). NotFound: there is no such file. DataLoss as above; then nothing
// has changed.
absl::StatusOr<std::vector<Ghost>> MakeGhosts(const std::map<std::string, LinkReplacement>& by_path,
                                              absl::string_view files_content, std::string* remaps_content);

}  // namespace rekindle::criu
