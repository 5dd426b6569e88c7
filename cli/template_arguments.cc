#include "cli/template_arguments.h"

#include "base/status.h"
#include "cli/command_group.h"

namespace rekindle::cli {

void TemplateArguments::AddTo(CLI::App& app, TimelineOptions* timeline) {
  template_ = AddCommandGroup(
      app, "template", "Keep a live copy of an image from which others are forked",
      "  rekindle run --hold --detach --name fn -- python3 app.py && rekindle ckpt fn -t fn:v1 --stop\n"
      "  rekindle template up fn:v1 --name fn\n"
      "  rekindle template start fn --detach\n"
      "The image is one of a job that the runtime hook held at its ready().\n");
  CLI::App* up = AddCommand(*template_, "up", "Restore an image as a template",
                            "  rekindle template up fn:v1 --name fn\n");
  up->add_option("image", image_, "The image")->type_name("IMAGE")->required();
  up->add_option("--name", name_, "The template's name [the image's]")->type_name("NAME");
  CLI::App* down = AddCommand(*template_, "down", "Take a template down; what was started from it goes on",
                              "  rekindle template down fn\n");
  down->add_option("template", target_, "The template's name")->type_name("TEMPLATE")->required();
  AddCommand(*template_, "ls", "List the templates", "  rekindle template ls\n");
  CLI::App* start = AddCommand(*template_, "start", "Start a copy of a template in a sandbox of its own",
                               "  rekindle template start fn --detach --env REQUEST=17\n"
                               "A clone of the image is started where the template can't be forked.\n");
  start->add_option("template", target_, "The template's name")->type_name("TEMPLATE")->required();
  start->add_option("--name", name_, "A name for the job")->type_name("NAME");
  start->add_flag("-d,--detach", detach_, "Return once it runs");
  clone_.AddSandboxOptionsTo(start);
  AddTimelineOptions(start, timeline);
}

absl::StatusOr<Command> TemplateArguments::Finish() const {
  const std::string name = template_->get_subcommands().front()->get_name();
  if (name == "ls") return v1::ListTemplatesRequest();
  if (name == "up") {
    v1::TemplateUpRequest request;
    request.set_image(image_);
    request.set_name(name_);
    return request;
  }
  if (name == "down") {
    v1::TemplateDownRequest request;
    request.set_name(target_);
    return request;
  }
  v1::StartFromTemplateRequest request;
  request.set_template_(target_);
  request.set_name(name_);
  request.set_detach(detach_);
  RK_RETURN_IF_ERROR(clone_.Fill(request.mutable_clone()));
  return request;
}

}  // namespace rekindle::cli
