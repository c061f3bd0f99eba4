"""The same of TensorFlow."""

import horovod.tensorflow as hvd
import tensorflow as tf

import hvd_elastic_ext.tensorflow as elastic

hvd.init()
print("horovod's world:", hvd.rank(), hvd.size(), flush=True)
state = elastic.TensorFlowState([tf.Variable(1.0)], epoch=0)
print("training alone", flush=True)
