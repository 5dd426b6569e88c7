#include "cli/transfer_arguments.h"

#include <sys/stat.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cli/endpoint.h"
#include "cli/number_checks.h"
#include "cli/paths.h"
#include "cli/transfer_commands.h"

namespace rekindle::cli {

void TransferArguments::AddToExport(CLI::App* command) {
  command->add_option("image", image_, "The image")->type_name("IMAGE")->required();
  CLI::Option* file =
      command->add_option("--file", file_, "The file to write, or - for standard output")->type_name("FILE");
  command
      ->add_option("--since", since_,
                   "Leave out what is as in this image, which whoever takes this one in has already")
      ->type_name("IMAGE")
      ->needs(file);
  command->add_option("--criu", criu_, "The folder to write for CRIU: absent or empty")
      ->type_name("DIR")
      ->excludes(file);
}

void TransferArguments::AddToImport(CLI::App* command) {
  CLI::Option* file =
      command->add_option("--file", file_, "What 'rekindle export --file' wrote, or - for standard input")
          ->type_name("FILE");
  CLI::Option* criu = command->add_option("--criu", criu_, "The folder that 'criu dump' made")
                          ->type_name("DIR")
                          ->excludes(file);
  command->add_option("-t,--tag", reference_, "The image's name [the one that it had]")
      ->type_name("NAME:TAG");
  command->add_flag("--replace", replace_, "Take over a name that exists")->needs(file);
  command->add_option("--parent", parent_, "Deduplicate against this image")->type_name("IMAGE")->needs(criu);
}

void TransferArguments::AddToCopy(CLI::App* command) {
  command->add_option("image", image_, "The image; with --follow a name without a tag")
      ->type_name("IMAGE")
      ->required();
  command->add_option("--to", to_, "Another daemon, as --host names it, or the folder of a store")
      ->type_name("HOST|DIR")
      ->required();
  CLI::Option* tag = command->add_option("-t,--tag", reference_, "Its name there [the one that it has here]")
                         ->type_name("NAME:TAG");
  command->add_flag("--replace", replace_, "Take over a name that exists there");
  command->add_flag("--whole", whole_, "Send all of it, also what an image there has of it");
  CLI::Option* follow =
      command->add_flag("--follow", follow_, "Go on with each newer image of that name, until interrupted")
          ->excludes(tag);
  command->add_option("--keep", keep_, "How many of these copies stay there [all]")
      ->type_name("N")
      ->check(AboveZero())
      ->needs(follow);
}

absl::StatusOr<Command> TransferArguments::Finish(const std::string& name, bool tls,
                                                  const std::string& working_directory) const {
  if (name == "copy") return Copy(tls, working_directory);
  if (file_.empty() && criu_.empty()) {
    return absl::InvalidArgumentError(
        "give --file FILE (an image of Rekindle's own) or --criu DIR (what criu reads and writes)");
  }
  return name == "export" ? Export(working_directory) : Import(working_directory);
}

absl::StatusOr<Command> TransferArguments::Export(const std::string& working_directory) const {
  if (!criu_.empty()) {
    v1::ExportImageRequest request;
    request.set_image(image_);
    request.set_criu_directory(Absolute(criu_, working_directory));
    return request;
  }
  ExportToFile what;
  what.request.set_image(image_);
  what.request.set_since(since_);
  what.file = file_;
  return what;
}

absl::StatusOr<Command> TransferArguments::Import(const std::string& working_directory) const {
  if (!criu_.empty()) {
    if (reference_.empty()) {
      return absl::InvalidArgumentError("what CRIU wrote has no name: give it one with -t NAME:TAG");
    }
    v1::ImportImageRequest request;
    request.set_criu_directory(Absolute(criu_, working_directory));
    request.set_reference(reference_);
    request.set_parent(parent_);
    return request;
  }
  ImportFromFile what;
  what.begin.set_reference(reference_);
  what.begin.set_replace(replace_);
  what.file = file_;
  return what;
}

absl::StatusOr<std::string> TransferArguments::Destination(bool tls,
                                                           const std::string& working_directory) const {
  // A folder with a colon begins with '/' or '.'.
  const bool is_path = absl::StartsWith(to_, "/") || absl::StartsWith(to_, ".");
  if (!is_path && absl::StrContains(to_, ":")) {
    RK_RETURN_IF_ERROR(Annotate(CheckHost(to_), "--to"));
    return to_;
  }
  std::string folder = Absolute(to_.empty() ? "." : to_, working_directory);
  if (is_path || to_.empty() || absl::StrContains(to_, "/")) return folder;
  // It may as well be a machine's name.
  struct stat info;
  if (tls || ::stat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("--to: '", to_, "' can be a machine and a folder: name a ",
                                                   "daemon as ", to_, ":PORT, the folder of a store as ./",
                                                   to_));
  }
  return folder;
}

absl::StatusOr<Command> TransferArguments::Copy(bool tls, const std::string& working_directory) const {
  if (follow_ && absl::StrContains(image_, ":")) {
    return absl::InvalidArgumentError(
        "--follow goes from one image of a name to the next: leave the tag out");
  }
  CopyImage what;
  what.image = image_;
  RK_ASSIGN_OR_RETURN(what.to, Destination(tls, working_directory));
  what.begin.set_reference(reference_);
  what.begin.set_replace(replace_);
  what.whole = whole_;
  what.follow = follow_;
  what.keep = keep_;
  return what;
}

}  // namespace rekindle::cli
