"""The Kubernetes examples are what docs/containers.md says, with options that rekindled has.

kubernetes_example_test.py PATH_OF_REKINDLED
"""

import os
import re
import subprocess
import sys
import unittest

import yaml

_REPOSITORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
_EXAMPLES = os.path.join(_REPOSITORY, "examples", "kubernetes")
_REKINDLED = sys.argv.pop(1)


def documents(name):
    with open(os.path.join(_EXAMPLES, name), encoding="utf-8") as file:
        return list(yaml.safe_load_all(file))


def grace_of(command):
    return next(int(word.split("=")[1]) for word in command if word.startswith("--grace="))


class KubernetesExampleTest(unittest.TestCase):
    def check_mounts(self, pod):
        """Each leads to a folder or file of the node, and none is left over."""
        paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
        used = set()
        for container in pod.get("initContainers", []) + pod["containers"]:
            for field in ("name", "image", "command"):
                self.assertTrue(container[field], container)
            for mount in container["volumeMounts"]:
                self.assertTrue(mount["mountPath"].startswith("/"), mount)
                self.assertIn(mount["name"], paths)
                used.add(mount["name"])
        self.assertEqual(used, set(paths))
        return paths

    def daemon_set(self):
        namespace, daemon_set = documents("daemonset.yaml")
        self.assertEqual((namespace["apiVersion"], namespace["kind"]), ("v1", "Namespace"))
        self.assertEqual((daemon_set["apiVersion"], daemon_set["kind"]), ("apps/v1", "DaemonSet"))
        self.assertEqual(daemon_set["metadata"]["namespace"], namespace["metadata"]["name"])
        return daemon_set["spec"]

    def test_the_daemon_set(self):
        spec = self.daemon_set()
        template = spec["template"]
        labels = template["metadata"]["labels"].items()
        self.assertLessEqual(spec["selector"]["matchLabels"].items(), labels)
        self.assertEqual(spec["updateStrategy"]["rollingUpdate"]["maxSurge"], 0)
        pod = template["spec"]
        self.assertIs(pod["hostPID"], True)
        paths = self.check_mounts(pod)
        (daemon,) = pod["containers"]
        self.assertIs(daemon["securityContext"]["privileged"], True)
        self.assertGreater(pod["terminationGracePeriodSeconds"], grace_of(daemon["command"]))
        for mount in daemon["volumeMounts"]:
            self.assertEqual(paths[mount["name"]], mount["mountPath"])  # jobs' paths are the node's
        host = next(variable["value"] for variable in daemon["env"] if variable["name"] == "REKINDLE_HOST")
        folder = os.path.dirname(host.removeprefix("unix://"))
        self.assertIn(folder, paths.values())
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            self.assertEqual(daemon[probe]["exec"]["command"][1:], ["version"])

    def test_its_options_are_rekindleds(self):
        (daemon,) = self.daemon_set()["template"]["spec"]["containers"]
        told = subprocess.run([_REKINDLED, "--help"], check=True, capture_output=True, text=True).stdout
        known = set(re.findall(r"^ +(?:-\w,)?(--[a-z][a-z-]+)", told, re.MULTILINE))
        self.assertIn("--store", known)
        self.assertEqual(os.path.basename(daemon["command"][0]), "rekindled")
        for word in daemon["command"][1:]:
            self.assertIn(word.split("=")[0], known)

    def test_the_documentation_names_each_folder(self):
        with open(os.path.join(_REPOSITORY, "docs", "containers.md"), encoding="utf-8") as file:
            text = file.read()
        rows = set(re.findall(r"^\| `(/[^`]+)`", text, re.MULTILINE))
        self.assertEqual(rows, set(self.check_mounts(self.daemon_set()["template"]["spec"]).values()))

    def test_the_job_and_its_place(self):
        init = next(volume["hostPath"]["path"] for volume in self.daemon_set()["template"]["spec"]["volumes"]
                    if volume["name"] == "init")  # fmt: skip
        job, place = documents("job.yaml")
        for pod in (job, place):
            self.assertEqual((pod["apiVersion"], pod["kind"]), ("v1", "Pod"))
            self.assertEqual(pod["spec"]["restartPolicy"], "Never")
            self.assertEqual(list(self.check_mounts(pod["spec"]).values()), [init])
        (of_job,), (of_place,) = job["spec"]["containers"], place["spec"]["containers"]
        self.assertEqual(of_place["command"], of_job["command"][:1])
        self.assertGreater(len(of_job["command"]), 1)
        for field in ("image", "volumeMounts"):
            self.assertEqual(of_job[field], of_place[field])
        self.assertNotEqual(job["metadata"]["name"], place["metadata"]["name"])


if __name__ == "__main__":
    unittest.main()
